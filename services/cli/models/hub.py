"""A model from the Hugging Face hub: resumed by huggingface_hub, checked against the hub's sha256."""

from pathlib import Path

from services.cli.errors import CliError
from services.cli.models import files

PATTERNS = ["*.safetensors", "*.safetensors.index.json", "*.json", "*.jinja", "tokenizer.model", "merges.txt"]


def pull(repo: str, folder: Path) -> Path:
    """Downloads what serving needs of `repo` ("org/name") into `folder`; what is there already is kept.

    Raises CliError: no network, no such model, not allowed, or a file whose sha256 differs.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        info = HfApi().model_info(repo, files_metadata=True)
        _check_weights(repo, [sibling.rfilename for sibling in info.siblings or []], folder)
        snapshot_download(repo, revision=info.sha, local_dir=folder, allow_patterns=PATTERNS)
    except GatedRepoError:
        raise CliError(f"{repo} asks for consent", "Accept its terms on the hub, then set HF_TOKEN") from None
    except RepositoryNotFoundError:
        raise CliError(f"the hub has no model {repo}, or it is private", "Check the name; set HF_TOKEN") from None
    except CliError:
        raise
    except Exception as error:  # the hub's HTTP library, so its errors too, differ between its versions
        raise CliError(
            f"could not fetch {repo}: {error}",
            f"It needs a network that reaches the hub (HF_ENDPOINT, HTTPS_PROXY). Without one, copy the model's "
            f"folder to {folder}",
        ) from error
    for sibling in info.siblings or []:
        path = folder / sibling.rfilename
        if sibling.lfs and path.is_file() and files.sha256(path) != sibling.lfs.sha256:
            path.unlink()
            raise CliError(f"{path} was damaged on its way and has been removed", "Run the command again")
    return folder


def _check_weights(repo: str, names: list[str], folder: Path) -> None:
    if not any(name.endswith(".safetensors") for name in names):
        raise CliError(
            f"{repo} holds no weights as *.safetensors",
            f"Another repository of the model may. A *.gguf file can be served too: put it into {folder} by hand",
        )
