"""Search a folder of text files by meaning: python search.py MODEL FOLDER "a question"

MODEL is a folder of sentence-transformers, such as all-MiniLM-L6-v2. The vectors are kept beside the texts, and made anew for changed files.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

import foreshape as fs


def pieces(folder: Path) -> list[tuple[str, str]]:
    """Return the paragraphs of all files, each with its file's name."""
    files = sorted(file for file in folder.rglob("*") if file.suffix in (".txt", ".md"))
    return [(str(file), part.strip()) for file in files for part in file.read_text("utf-8", "replace").split("\n\n") if part.strip()]


def vectors_of(model: fs.Embedder, folder: Path, texts: list[str]) -> np.ndarray:
    """Return the vectors of the paragraphs; those in the folder are taken where they are of the same texts."""
    file = folder / ".vectors.npz"
    known = {}
    if file.exists():
        with np.load(file) as kept:
            known = dict(zip(kept["texts"].tolist(), kept["vectors"], strict=True))
    new = [text for text in dict.fromkeys(texts) if text not in known]
    known |= dict(zip(new, model.encode_document(new, normalize=True, progress=sys.stderr.isatty()), strict=True))
    vectors = np.stack([known[text] for text in texts])
    np.savez(file, texts=np.array(texts), vectors=vectors)
    return vectors


def main(model_folder: str, folder: str, question: str) -> None:
    model = fs.Embedder(model_folder, memory="512MiB")
    parts = pieces(Path(folder))
    if not parts:
        raise SystemExit(f"{folder} has no .txt and no .md file with text")
    scores = vectors_of(model, Path(folder), [text for _, text in parts]) @ model.encode_query(question, normalize=True)
    for i in np.argsort(-scores)[:5]:
        file, text = parts[i]
        print(f"{scores[i]:.3f}  {file}: {' '.join(text.split())[:100]}")


if __name__ == "__main__":
    if len(sys.argv) != 4:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
