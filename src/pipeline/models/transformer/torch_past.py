"""The keys and values that a block of a decoder has made, kept for the tokens to come (torch)."""

from __future__ import annotations

import torch


class Now:
    """Where the tokens at hand stand: at the beginning, or one of each row at its own position.

    `most`: how many slots are in use; `seen`: (B, 1, 1, S) of those that the tokens may look at, None if all.
    """

    def __init__(self) -> None:
        self.at_BT: torch.Tensor | None = None

    def go_to(self, at_B: torch.Tensor, device: torch.device) -> None:
        """One token of each row, at position `at`."""
        self.at_BT, self.rows_B, self.most = at_B[:, None], torch.arange(len(at_B)), int(at_B.max()) + 1
        everything = int(at_B.min()) + 1 == self.most
        self.seen = None if everything else (torch.arange(self.most) <= self.at_BT)[:, None, None].to(device)


class Past:
    """Keys and values of one block, (B, H, S, K): slot s of a row has those of the row's token at position s.

    The first tokens fill the slots from 0 on; a row that is shorter than others fills some with what it will overwrite.
    After that each row gets one token at a time. `now`: where; the blocks of a net share it.
    """

    def __init__(self, now: Now, slots: int) -> None:
        self.now, self.slots = now, slots

    @property
    def at_BT(self) -> torch.Tensor | None:
        """The positions of the tokens at hand (None: 0 to T - 1)."""
        return self.now.at_BT

    def joined(
        self, key_BHTK: torch.Tensor, value_BHTK: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """Keep new keys and values; those to attend to, and what of them is seen.

        None: of the first tokens by the causal order, later all.
        """
        batch, heads, length, head = key_BHTK.shape
        if self.now.at_BT is None:
            shape = (batch, heads, self.slots, head)
            self.keys, self.values = key_BHTK.new_zeros(shape), value_BHTK.new_zeros(shape)
            self.keys[:, :, :length], self.values[:, :, :length] = key_BHTK, value_BHTK
            return key_BHTK, value_BHTK, None
        rows, at_B, most = self.now.rows_B, self.now.at_BT[:, 0], self.now.most
        if self.now.seen is None:  # the same slot of all rows
            self.keys[:, :, most - 1], self.values[:, :, most - 1] = key_BHTK[:, :, 0], value_BHTK[:, :, 0]
        else:
            self.keys[rows, :, at_B], self.values[rows, :, at_B] = key_BHTK[:, :, 0], value_BHTK[:, :, 0]
        return self.keys[:, :, :most], self.values[:, :, :most], self.now.seen
