"""A disk of the server's own that gets full, read-only or slow: an ext4 file system in a file, on a
loop device.

All that the server writes lies there: store, recordings, traces, log. Needs root, and a system that
mounts loop devices.

- *Full*: a file takes every block that is free. The kernel answers ENOSPC; the limit of the size of
  files, which `disk full (store, log)` sets, answers EFBIG.
- *Read-only*: `mount -o remount,abort`, which is what an error of the device comes to. A plain
  remount is refused while files are open for writing. It stays so until somebody mounts it anew.
- *Slow*: the file system is frozen (`FIFREEZE`) for `FROZEN_S` of each `FROZEN_S + THAWED_S`; a
  write, or a file that is opened for writing, waits until it is thawed, and can't be interrupted. A
  device mapper that delays, and quotas of a control group, are not in every kernel.
"""

import asyncio
import contextlib
import fcntl
import functools
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from benchmarks.soak.command import make_home

from .fault_case import Act, Aftermath, FaultCase, FaultSite, Surroundings, nothing

DISK_MB: Final = 96
"""Enough for the store, recordings and traces; too little for any model's converted weights."""
FROZEN_S: Final = 1.0
THAWED_S: Final = 0.05
BALLAST: Final = "ballast"
WRITTEN_S: Final = 5.0
"""Time in s from the end of a call until its recording and its trace are missed."""
LOOK_S: Final = 0.25
"""Time in s between two looks at them."""

_FIFREEZE: Final = 0xC0045877
_FITHAW: Final = 0xC0045878


class Disk(Surroundings):
    """A mounted disk, with the server's home on it."""

    def __init__(self, folder: Path, mount: Path) -> None:
        super().__init__(folder)
        self.mount = mount
        self.home = mount / "home"
        self.log = mount / "server.log"
        self.recordings = mount / "recordings"
        self.traces = mount / "traces"
        self.settings = f'[agent]\nrecord_dir = "{self.recordings}"\ntrace_dir = "{self.traces}"\n'
        self.num_frozen = 0
        """Times that it was frozen."""
        self._is_slow = threading.Event()
        self._freezing: threading.Thread | None = None

    def fill(self) -> None:
        """Leave no byte free. Blocks."""
        with (self.mount / BALLAST).open("ab", buffering=0) as file:
            for size in (1 << 20, 1 << 12, 1):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)):
                        pass

    def free(self) -> None:
        """Give back what `fill` took."""
        (self.mount / BALLAST).unlink(missing_ok=True)

    def abort(self) -> None:
        """Make it read-only, whatever is open. Raises OSError."""
        _command("mount", "-o", "remount,abort", str(self.mount))

    def slow_down(self) -> None:
        """Freeze it again and again, on a thread, until `speed_up`: when this returns it is frozen.
        Raises OSError."""
        descriptor = os.open(self.mount, os.O_RDONLY)
        try:
            self._freeze(descriptor)
        except OSError:
            os.close(descriptor)
            raise
        self._is_slow.set()
        self._freezing = threading.Thread(
            target=self._keep_freezing, args=(descriptor,), name="bench-disk", daemon=True
        )
        self._freezing.start()

    def speed_up(self) -> None:
        """End `slow_down`, if it was begun: when this returns the disk is thawed. Blocks."""
        self._is_slow.clear()
        if self._freezing is not None:
            self._freezing.join()

    def _freeze(self, descriptor: int) -> None:
        fcntl.ioctl(descriptor, _FIFREEZE, 0)
        self.num_frozen += 1

    def _keep_freezing(self, descriptor: int) -> None:
        """Thaw it, and freeze it anew while it shall be slow. `descriptor`: of the frozen disk's
        folder; it is closed."""
        try:
            while True:
                try:
                    time.sleep(FROZEN_S)
                finally:
                    fcntl.ioctl(descriptor, _FITHAW, 0)
                time.sleep(THAWED_S)
                if not self._is_slow.is_set():
                    return
                self._freeze(descriptor)
        finally:
            os.close(descriptor)


def _command(*arguments: str) -> None:
    """Run a command. Raises OSError with what it said."""
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{arguments[0]}: {done.stderr.strip()}")


@contextmanager
def mounted(folder: Path, megabytes: int = DISK_MB) -> Iterator[Path]:
    """Mount an empty disk for the length of the block. `folder`: for its image and its mount point.
    Raises OSError."""
    image, mount = folder / "image", folder / "disk"
    mount.mkdir()
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    # Without blocks that are kept for root, who fills it.
    _command("mkfs.ext4", "-q", "-m", "0", str(image))
    _command("mount", "-o", "loop", str(image), str(mount))
    try:
        yield mount
    finally:
        try:
            _command("umount", str(mount))
        except OSError:
            _command("umount", "--lazy", str(mount))  # what is still open is let go later


@functools.cache
def disk_problem() -> str:
    """Why no disk can be mounted here; empty: one can. Blocks."""
    if sys.platform != "linux":
        return "needs Linux"
    if os.geteuid() != 0:
        return "needs root, to mount a disk of its own"
    missing = [name for name in ("mkfs.ext4", "mount", "umount") if shutil.which(name) is None]
    if missing:
        return f"needs {', '.join(missing)}, for a disk of its own"
    with TemporaryDirectory(prefix="halfsec-disk-") as name:
        try:
            with mounted(Path(name), 4):
                return ""
        except OSError as error:
            return f"no disk of its own can be mounted: {error}"


@asynccontextmanager
async def around_disk(folder: Path) -> AsyncIterator[Disk]:
    """A disk with a home, in which the models are links."""
    with mounted(folder) as mount:
        disk = Disk(folder, mount)
        make_home(mount / "home")
        try:
            yield disk
        finally:
            await asyncio.to_thread(disk.speed_up)


@asynccontextmanager
async def around_full_cache(folder: Path) -> AsyncIterator[Disk]:
    """A disk without room for converted weights, of which there are none yet."""
    with mounted(folder) as mount:
        (mount / "home" / "converted").mkdir(parents=True)
        make_home(mount / "home")
        yield Disk(folder, mount)


def _disk(site: FaultSite) -> Disk:
    assert isinstance(site.around, Disk)
    return site.around


def _on_disk(act: Callable[[Disk], None]) -> Act:
    async def strike(site: FaultSite) -> None:
        await asyncio.to_thread(act, _disk(site))

    return strike


async def files_kept(site: FaultSite) -> Aftermath:
    """What of the calls' recordings and traces is on the disk, `WRITTEN_S` after the call at the
    latest."""
    disk = _disk(site)
    for _ in range(round(WRITTEN_S / LOOK_S)):
        recordings, traces = await asyncio.to_thread(_kept_sizes, disk)
        if any(recordings) and any(traces):
            break
        await asyncio.sleep(LOOK_S)
    seen = f"on the disk: recordings: {in_kb(recordings)}; traces: {in_kb(traces)}"
    lost = [
        f"the {name}"
        for name, found in (("recording", recordings), ("trace", traces))
        if not any(found)
    ]
    return Aftermath(seen=[seen], lost=lost)


def _kept_sizes(disk: Disk) -> tuple[list[int], list[int]]:
    """Sizes of the recordings and of the traces. Blocks: a disk that is frozen waits."""
    traces = [each for each in sorted(disk.traces.rglob("*")) if each.is_file()]
    return (
        [each.stat().st_size for each in sorted(disk.recordings.rglob("*.wav"))],
        [each.stat().st_size for each in traces],
    )


async def freezes_counted(site: FaultSite) -> Aftermath:
    """As `files_kept`; fails where the disk was not frozen."""
    found = await files_kept(site)
    number = _disk(site).num_frozen
    why = [] if number else ["the disk was not slow"]
    return Aftermath([*found.seen, f"the disk was frozen {number} times"], found.lost, why)


def in_kb(sizes: Sequence[int]) -> str:
    """File sizes in kB, in words."""
    return f"{', '.join(str(round(size / 1000)) for size in sizes)} kB" if sizes else "none"


async def cache_left(site: FaultSite) -> Aftermath:
    """Whether it ran without a cache, and left nothing half written in it."""
    disk = _disk(site)
    log = (disk.mount / "server.log").read_text("utf-8", "replace")
    said = "converted weights cannot be kept" in log
    left = sorted((disk.mount / "home" / "converted").glob("*weights*"))
    why = [f"in the cache is left: {each.name}" for each in left]
    if not said:
        why.append("its log does not say that weights can't be kept")
    return Aftermath(seen=["started without converted weights"], why=why)


DISK_CASES: Final[tuple[FaultCase, ...]] = (
    FaultCase(
        "disk full (recordings, traces, store, log)",
        _on_disk(Disk.fill),
        _on_disk(Disk.free),
        not_here=disk_problem,
        around=around_disk,
        look=files_kept,
    ),
    FaultCase(
        f"disk full (model cache: {DISK_MB} MB for all)",
        nothing,
        not_here=disk_problem,
        around=around_full_cache,
        look=cache_left,
    ),
    FaultCase(
        "disk read-only (recordings, traces, store, log)",
        _on_disk(Disk.abort),
        not_here=disk_problem,
        around=around_disk,
        look=files_kept,
    ),
    FaultCase(
        f"disk slow (a write waits up to {FROZEN_S:g} s)",
        _on_disk(Disk.slow_down),
        _on_disk(Disk.speed_up),
        not_here=disk_problem,
        around=around_disk,
        look=freezes_counted,
    ),
)
