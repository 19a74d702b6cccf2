"""The files that ``nlgraft submit`` sends to a cluster: code and studies, neither secrets nor data."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pathspec

from nlgraft.basics.errors import DataError
from nlgraft.basics.wording import count, size
from nlgraft.pipeline.manifest import git

SECRETS = (
    ".env", ".env.*", "*.env", ".envrc", ".netrc", "netrc", "_netrc", ".git-credentials", ".pypirc",
    ".pgpass", ".my.cnf", ".npmrc", ".htpasswd", ".boto", ".s3cfg", ".aws/", ".ssh/", ".docker/", ".kube/",
    ".config/", "gcloud/",
    ".azure/", ".gnupg/", ".huggingface/", ".cache/", "id_rsa*", "id_dsa*", "id_ecdsa*",
    "id_ed25519*", "*.pem", "*.key", "*.p12", "*.pfx", "*.jks", "*.keystore", "*.kdbx", "*.ppk",
    "credentials.json", ".credentials*", "client_secret*.json", "service_account*.json", "kaggle.json",
    "application_default_credentials.json", "secrets.yaml", "secrets.yml", "secrets.toml", "*.tfvars",
    ".hf_token", ".vault-token", ".databrickscfg", "pip.conf",
)  # fmt: skip
"""Patterns as in .gitignore of passwords and keys, which stay even if git tracks them."""
_SECRETS = pathspec.GitIgnoreSpec.from_lines(SECRETS)
LEFT_OUT = (
    *SECRETS, ".git",
    ".venv/", "venv/", "__pycache__/", "*.egg-info/", ".pytest_cache/", ".ruff_cache/", ".mypy_cache/",
    "node_modules/", "/data/", "/datasets/", "/checkpoints/", "/nlgraft_store/", "/reports/", "/mlruns/",
    "/mlartifacts/", "*.db",
)  # fmt: skip
"""Passwords and keys, what a machine builds for itself, data and results."""
MAX_FILE_BYTES = 10_000_000
"""A larger file is left out: it is data or weights."""
MAX_BYTES = 500_000_000
"""Ray's job server takes no more."""
_IGNORE_FILES = (".gitignore", ".rayignore")
_NUM_NAMED = 8


@dataclass(frozen=True)
class JobPackage:
    """What is sent of a directory.

    Attributes:
        files: Sizes in bytes by path below the directory.
        left_out: Files and whole directories that are not sent, each with a reason.
    """

    directory: Path
    files: dict[str, int]
    left_out: dict[str, str]
    _needs: Sequence[str]
    _tracked: frozenset[str] | None

    @classmethod
    def collect(cls, directory: Path, excludes: Sequence[str] = (), needs: Sequence[str] = ()) -> JobPackage:
        """Choose the files of a directory.

        Args:
            directory: The job's directory.
            excludes: Further patterns; one that begins with ``!`` includes what others leave out.
            needs: Files and folders that are sent, tracked by git or not. Outside a repository, all is.

        Raises:
            DataError: They are more than Ray takes, or git cannot list those of a repository.
        """
        spec = pathspec.GitIgnoreSpec.from_lines([*LEFT_OUT, *excludes])
        package = cls(directory, {}, {}, needs, _tracked(directory))
        package._walk("", [("", spec)], can_return=any(one.startswith("!") for one in excludes))
        total = sum(package.files.values())
        if total > MAX_BYTES:
            raise DataError(
                f"{directory}: {size(total)} would be sent, Ray takes {size(MAX_BYTES)}; the largest parts "
                f"are {package._largest()}. Leave out what the job does not need by `excludes` of "
                "runtime_env.yaml, or submit from a smaller directory above the study"
            )
        return package

    def copy_to(self, target: Path) -> None:
        """Copy the files, so that nothing else can be sent."""
        for name in self.files:
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.directory / name, target / name)

    def describe(self) -> Iterator[str]:
        """Describe in a few lines what is sent and what is not."""
        total = size(sum(self.files.values()))
        yield f"sending {count(len(self.files), 'file')}, {total}: {self._largest()}"
        if self.left_out:
            named = [f"{name} ({reason})" for name, reason in list(self.left_out.items())[:_NUM_NAMED]]
            more = len(self.left_out) - len(named)
            yield f"not sent: {', '.join(named)}{f' and {more:,} more' if more else ''}"

    def _largest(self) -> str:
        parts: Counter[str] = Counter()
        for name, num_bytes in self.files.items():
            top, slash, _ = name.partition("/")
            parts[top + slash] += num_bytes
        named = [f"{name} {size(num_bytes)}" for name, num_bytes in parts.most_common(_NUM_NAMED)]
        return ", ".join(named) + (", ..." if len(parts) > len(named) else "")

    def _walk(
        self, folder: str, specs: list[tuple[str, pathspec.GitIgnoreSpec]], *, can_return: bool
    ) -> None:
        """Sort what lies in a folder (``""`` or ``a/b/``) into what is sent and what is not."""
        place = self.directory / folder
        for ignore in _IGNORE_FILES:
            if (place / ignore).is_file():
                lines = (place / ignore).read_text("utf-8", errors="replace").splitlines()
                specs = [*specs, (folder, pathspec.GitIgnoreSpec.from_lines(lines))]
        for entry in sorted(os.scandir(place), key=lambda entry: entry.name):
            name = folder + entry.name
            is_directory = entry.is_dir(follow_symlinks=False)
            reason = self._reason(name + "/" * is_directory, specs)
            if is_directory and (not reason or (can_return and entry.name not in (".git", ".venv"))):
                self._walk(name + "/", specs, can_return=can_return)
            elif reason or not is_directory:
                self._take(name, entry, reason, specs[0][1])

    def _take(
        self, name: str, entry: os.DirEntry[str], reason: str, patterns: pathspec.GitIgnoreSpec
    ) -> None:
        is_wanted = patterns.check_file(name).include is False
        if not reason and entry.is_symlink():
            target = Path(os.path.realpath(self.directory / name))  # resolve() raises for a circle of links
            root = self.directory.resolve()
            if not target.is_relative_to(root):
                reason = "a link that leads outside"
            elif patterns.match_file(target.relative_to(root).as_posix()):
                reason = "a link to what is left out"
        if not reason and not (self.directory / name).is_file():
            reason = "no file"
        num_bytes = 0 if reason else entry.stat().st_size
        if num_bytes > MAX_FILE_BYTES and not is_wanted:
            reason = f"{size(num_bytes)}, more than {size(MAX_FILE_BYTES)}"
        if reason:
            self.left_out[name + "/" * entry.is_dir(follow_symlinks=False)] = reason
        else:
            self.files[name] = num_bytes

    def _reason(self, name: str, specs: list[tuple[str, pathspec.GitIgnoreSpec]]) -> str:
        is_excluded = specs[0][1].check_file(name).include
        if is_excluded is None and _SECRETS.match_file(name.lower()):
            is_excluded = True
        if is_excluded is not None:
            return "left out" if is_excluded else ""
        path = name.rstrip("/") + "/"
        if any(path.startswith(f"{one}/") or f"{one}/".startswith(path) for one in self._needs):
            return ""
        if self._tracked is not None:
            return "" if name in self._tracked else "not in git"
        is_ignored = any(spec.match_file(name.removeprefix(folder)) for folder, spec in specs[1:])
        return "ignored by git" if is_ignored else ""


def _tracked(directory: Path) -> frozenset[str] | None:
    """List the files and folders (``a/b/``) that git tracks in a directory; None outside a repository.

    Raises:
        DataError: Git is missing, or cannot list them: then all would be sent that lies beside them.
    """
    place = directory.resolve()
    if not any((folder / ".git").exists() for folder in (place, *place.parents)):
        return None
    try:
        files = git(directory, "ls-files", "-z", "--recurse-submodules").rstrip("\0").split("\0")
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError) as error:
        reason = getattr(error, "stderr", None) or error
        raise DataError(
            f"{directory}: is in a git repository, but git cannot list its files ({str(reason).strip()}); "
            "install git or mend the repository, or submit from a copy outside it"
        ) from error
    parents = {f"{parent}/" for name in files if name for parent in PurePosixPath(name).parents}
    return frozenset(parents.union(files) - {""})
