"""Files of a dataset: downloaded once, verified whenever they are opened."""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import BinaryIO
from urllib.request import Request, build_opener

from filelock import FileLock

from trainer.core.regular_files import open_regular
from trainer.data.base import DataError

_BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class Archive:
    """One published file, known by its checksum.

    path: relative to the data directory, with `/`, e.g. `MNIST/raw/train-images-idx3-ubyte.gz`.
    md5: the MD5 of the whole file, hexadecimal. urls: where it is published, tried in this order.
    timeout_s: seconds without data after which a download fails.
    """

    path: str
    md5: str
    urls: tuple[str, ...]
    timeout_s: float = 30.0

    def ensure(self, data_dir: Path) -> None:
        """Download the file into `data_dir` unless it is there. Safe to call from several processes.

        If the file is present, nothing is written, not even a lock file: a complete data directory may
        be read-only. Raises DataError if the file cannot be downloaded or written, or if the present
        file is not the published one, which stays unchanged.
        """
        target = data_dir / self.path
        try:
            if self._is_present(data_dir):
                return
            target.parent.mkdir(parents=True, exist_ok=True)
            # Waits without a limit: a large file may take an hour, and the system frees the lock of a
            # process that dies. The lock file stays, since removing it would let two processes hold it.
            with FileLock(f"{target}.lock"):
                if not self._is_present(data_dir):  # another process may have downloaded it meanwhile
                    self._download(target, data_dir)
        except OSError as error:
            raise DataError(self._absent(data_dir, f"cannot be put there: {error}")) from error

    def open_verified(self, data_dir: Path) -> BinaryIO:
        """Verify the file's checksum and return the file, open for reading at its start.

        Raises DataError if it is absent, unreadable or not the published file.
        """
        target = data_dir / self.path
        try:
            file = open_regular(target)
        except FileNotFoundError:
            raise DataError(self._absent(data_dir)) from None
        except OSError as error:
            raise DataError(f"cannot read {target}: {error.strerror}") from error
        try:
            found = hashlib.file_digest(file, _md5).hexdigest()
            if found != self.md5:
                raise DataError(
                    f"{target} is damaged or another file: its md5 is {found}, expected {self.md5}. "
                    "Delete it, and it will be downloaded again."
                )
            file.seek(0)
        except BaseException:
            file.close()
            raise
        return file

    def read(self, data_dir: Path) -> bytes:
        """The content of the verified file. Raises DataError as `open_verified` does."""
        with self.open_verified(data_dir) as file:
            return file.read()

    def _is_present(self, data_dir: Path) -> bool:
        if not (data_dir / self.path).exists():
            return False
        self.open_verified(data_dir).close()
        return True

    def _download(self, target: Path, data_dir: Path) -> None:
        """Download the file from the first URL that works. The caller holds the lock.

        The file gets its name only when it is complete and verified, so no process reads a partial file.
        """
        # A fixed name, so that the next download overwrites the partial file of a killed process.
        # (tempfile would also make the file unreadable to the other users of a shared directory.)
        partial = target.with_name(f"{target.name}.part")
        failures = []
        try:
            for url in self.urls:
                try:
                    self._fetch(url, partial)
                except (OSError, HTTPException, DataError) as error:
                    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                        raise  # the next URL would fail, too
                    failures.append(f"\n  {url}: {error}")
                else:
                    os.replace(partial, target)
                    return
        finally:
            partial.unlink(missing_ok=True)
        raise DataError(self._absent(data_dir, "could not be downloaded:" + "".join(failures)))

    def _fetch(self, url: str, partial: Path) -> None:
        digest = _md5()
        received = 0
        # A new opener reads the proxy settings of the environment as they are now.
        with (
            build_opener().open(Request(url), timeout=self.timeout_s) as response,
            partial.open("wb") as file,
        ):
            while block := response.read(_BLOCK_BYTES):
                digest.update(block)
                received += file.write(block)
            announced = response.headers.get("Content-Length", "unknown")
        if digest.hexdigest() != self.md5:
            raise DataError(
                f"{received} bytes came (announced: {announced}), with the md5 {digest.hexdigest()}, "
                f"expected {self.md5}"
            )

    def _absent(self, data_dir: Path, why: str = "") -> str:
        urls = "".join(f"\n  {url}" for url in self.urls)
        return (
            f"{self.path} is not in {data_dir}{' and ' if why else ''}{why}\n"
            f"To get it by hand, save any of these as {data_dir / self.path}:{urls}\n"
            "If you have it already, name the directory that holds "
            f"{self.path} with --data-dir or SHARDYARD_DATA."
        )


def _md5() -> hashlib._Hash:
    # Not used for security, only to detect damaged files, so it works where FIPS forbids md5.
    return hashlib.md5(usedforsecurity=False)
