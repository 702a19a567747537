"""How a command ends: 0 done, 1 the run (or a cell) failed, 2 the user's mistake, 128 + n stopped by signal n."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from pipeline.cli.streams import leave, printable, say_at_once
from pipeline.errors import RunError, Stopped, UserError, cut

LONGEST_MESSAGE = 2000
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)  # SIGUSR1: Slurm's warning, if asked for
TOGETHER_SECONDS = 0.3  # timeout(1) signals a process and then its group, of which a busy machine makes two signals


def status_of(task: Callable[[], int]) -> int:
    """Run `task` and return its exit status, with what a person can act on as one line on standard error."""
    try:
        _check_current_folder()
        status = task()
        sys.stdout.flush()
        return status
    except Stopped as stop:
        return _stopped(stop)
    except Exception as error:
        if _asked is not None:  # an error of what the stop has unwound
            return _stopped(_asked)
        known = _status_of_error(error)
        if known is None:
            raise
        return known


def _check_current_folder() -> None:
    """Refuse a current folder that is gone, which everything that a command reads or writes is sought from."""
    try:
        Path.cwd()
    except FileNotFoundError as error:
        raise UserError("the current folder was deleted or moved away; change to one that exists (cd)") from error


def _stopped(stop: Stopped) -> int:
    print(f"stopped by {stop.signal_name}", file=sys.stderr)
    return stop.exit_status


def _status_of_error(error: Exception) -> int | None:
    """Say what is wrong; None for an error of ours, which keeps its traceback."""
    if isinstance(error, UserError | RunError):
        if os.environ.get("PIPELINE_TRACEBACK"):
            traceback.print_exc()
        say_at_once(f"error: {cut(printable(str(error)), LONGEST_MESSAGE - 50)}")
        return 2 if isinstance(error, UserError) else 1
    if isinstance(error, OSError) and error.filename is None and _output_refused():
        print(f"error: standard output: {error.strerror}; the output is lost", file=sys.stderr)
        return 1
    return None


def _output_refused() -> bool:
    """Whether standard output takes no more (a full disk). What it still holds is dropped then."""
    try:
        print(flush=True)  # what failed may have left nothing to flush
    except OSError:
        leave(sys.stdout.fileno())
        return True
    return False


def stop_on_signals(*, grace: float | None = None) -> None:
    """Ctrl-C, SIGTERM and SIGHUP (the terminal is gone) unwind the run by an exception; a later one ends it at once.

    `grace`: seconds that it has for that. Others are then ignored, and the kernel ends what is still there.
    A SIGHUP that is ignored stays so: that is what `nohup` is for.
    """
    global _grace
    _grace = grace
    for number in SIGNALS:
        if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _stop)
    sys.unraisablehook = _unraisable


def stop_asked() -> bool:
    """Whether a signal has asked for a stop."""
    return _asked is not None


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
_grace: float | None = None
_held = 0  # blocks under way that hold a stop back
_late = False  # whether one is held back now
_together = False  # whether signals that arrive now belong to the first


def _stop(number: int, _: FrameType | None) -> None:
    global _asked, _late
    if _together:
        return
    if _asked is not None:  # a second one, since the first a library has put this handler back
        _leave_to_the_system()
        signal.raise_signal(number)
        return
    _asked = Stopped(signal.Signals(number).name, 128 + number)
    if _grace is None:
        _wait_for_those_together()
    else:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_REAL, _grace)
    _leave_to_the_system()
    if _held:
        _late = True
    else:
        raise _asked


def _wait_for_those_together() -> None:
    global _together
    _together = True
    time.sleep(TOGETHER_SECONDS)
    _together = False


def _leave_to_the_system() -> None:
    """A later signal ends the process at once or, where the kernel ends it anyway, does nothing."""
    for each in SIGNALS:
        if signal.getsignal(each) is _stop:
            signal.signal(each, signal.SIG_DFL if _grace is None else signal.SIG_IGN)


def _unraisable(what: sys.UnraisableHookArgs) -> None:
    """A stop that was raised where Python ignores it is not the user's to see: `raise_if_stopped` raises it again.

    Nor is a second signal that came together with the first one, whose handler `_stop` has just replaced.
    """
    together = isinstance(what.exc_value, OSError) and "ignored due to race condition" in str(what.exc_value)
    if not (together or isinstance(what.exc_value, Stopped)):
        sys.__unraisablehook__(what)
