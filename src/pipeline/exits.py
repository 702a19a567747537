"""How a command ends: 0 done, 1 the run (or a cell) failed, 2 the user's mistake, 128 + n stopped by signal n."""

from __future__ import annotations

import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from pipeline.errors import RunError, Stopped, UserError


def status_of(task: Callable[[], int]) -> int:
    """Run `task` and return its exit status, with what a person can act on as one line on standard error."""
    try:
        status = task()
        sys.stdout.flush()
        return status
    except (UserError, RunError) as error:
        if os.environ.get("PIPELINE_TRACEBACK"):
            traceback.print_exc()
        print(f"error: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except Stopped as stop:
        print(f"stopped by {stop.signal_name}", file=sys.stderr)
        return stop.exit_status
    except BrokenPipeError:  # whoever read our output (head, less) has seen enough
        from pipeline.streams import leave

        leave(sys.stdout.fileno())
        return 0
    except OSError as error:
        if error.filename is not None or not _output_refused():
            raise
        print(f"error: standard output: {error.strerror}; what was to be shown is lost", file=sys.stderr)
        return 1


def _output_refused() -> bool:
    """Whether standard output takes no more (a full disk). What it still holds is dropped then."""
    from pipeline.streams import leave

    try:
        print(flush=True)  # what failed may have left nothing to flush
    except OSError:
        leave(sys.stdout.fileno())
        return True
    return False


def stop_on_signals() -> None:
    """Ctrl-C and SIGTERM unwind the run by an exception; a second one ends the process at once."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _stop)


def raise_if_stopped() -> None:
    """Raise the stop that a signal asked for, where it was lost.

    A signal that arrives while a garbage collector's callback runs (JAX has one) raises into that callback, and Python
    ignores what a callback raises. So a training loop asks here, between its steps.
    """
    if _asked is not None:
        raise _asked


@contextmanager
def stop_held_back() -> Iterator[None]:
    """A stop that is asked for inside is raised at the end of the block, or of the function that this decorates.

    For whatever works under a lock written in Python, such as a queue's: an exception that a signal raises within its
    `__enter__` leaves it locked for ever, and the run then hangs where it closes its files.
    """
    global _held, _late
    if threading.current_thread() is not threading.main_thread():  # signals are handled in the main thread
        yield
        return
    _held += 1
    try:
        yield
    finally:
        _held -= 1
        if _late and not _held:
            _late = False
            raise_if_stopped()


_asked: Stopped | None = None
_held = 0  # blocks under way that hold a stop back
_late = False  # whether one is held back now


def _stop(number: int, _: FrameType | None) -> None:
    global _asked, _late
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, signal.SIG_DFL)
    _asked = Stopped(signal.Signals(number).name, 128 + number)
    if _held:
        _late = True
    else:
        raise _asked
