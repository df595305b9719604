"""Train on NumPy, PyTorch or JAX: the same model, the same sentences, the same losses.

    ATTNSPEC_BACKEND=torch python docs/examples/learn_article_head.py

In "the fat cat sat on the mat", "cat" belongs to the first "the" and "mat" to the second. `attnspec demo` shows a head
that was built to know it; here three models learn it. `attnspec demo --train` does all of this on every backend, and
draws the picture.

Needs: pip install 'attnspec[cli]'
"""

from rich.console import Console
from rich.progress import track

import attnspec
from attnspec import random, registry
from attnspec.backend import choose
from attnspec.backend import default as backend
from attnspec.cli import heatmap, learned_head, train
from attnspec.errors import BackendError

# 1. What is learnt. Sentences are drawn from a random key, and a key gives the same bits on every backend. Each word
# has a place to look at: a noun its article, any other word "(none)", the word that every sentence begins with.

lesson = train.lesson(backend, steps=train.STEPS)
examples = lesson.batches[0]
print(" ".join(learned_head.sentences(random.key(7), 1, backend)[0]))
print("a batch:", tuple(examples.ids.shape), "words;", len(lesson.batches), "batches")

# 2. One gradient. `attnspec.vjp` gives the loss and its pullback, on frameworks with and without autodiff. The gradient
# comes as the model does, a tree of arrays. (`jax.grad` and `torch.func.grad` walk the same way back.)

kind = train.KINDS[-1]  # two layers: a transformer layer, and the head that looks
state = lesson.start(kind)
loss, pullback = attnspec.vjp(lambda model: learned_head.loss(model, examples, random.key(8)), state.model)
(gradient,) = pullback()
assert gradient.table.shape == state.model.table.shape
assert gradient.layers[0].attention.wq.shape == state.model.layers[0].attention.wq.shape

# 3. Training is this, some hundred times: `step` takes that gradient, and Adam, ten lines over the tree, moves the
# model. Dropout draws from the key that it is given, another one for each step.

step = train.compiled(backend)
losses = []
for examples, rng in track(list(zip(lesson.batches, lesson.keys, strict=True)), "two layers", transient=True):
    state, loss = step(state, examples, rng)
    losses.append(float(loss))
print("losses:", " ".join(f"{loss:.4f}" for loss in losses[:: len(losses) // 8]))

# 4. What it has learnt, on sentences that it has not seen, beside two models of one layer. Without positions a single
# layer gives equal words equal weights, so where a sentence has two equal articles no training helps it.

held_out = learned_head.batch(lesson.texts, backend)
two_layers = train.Training(state.model, losses, learned_head.evaluate(state.model, held_out, backend))
one_layer, told_positions = (train.train(kind, lesson, backend, after=lambda: None) for kind in train.KINDS[:-1])
limits = learned_head.limits(lesson.texts)
for title, score in (
    ("one layer", one_layer.score),
    ("the limits of one layer", limits),
    ("one layer, told positions", told_positions.score),
    ("two layers", two_layers.score),
):
    print(f"{title:26s} loss {score.loss:.4f}, articles found {score.found:.1%}")
assert one_layer.score.loss > limits.loss
assert two_layers.score.found > 0.9 > limits.found

# 5. Where each word looks, in the head that was built and in those that have learnt.

words = ["the", "fat", "cat", "sat", "on", "the", "mat"]
models = [training.model for training in (one_layer, told_positions, two_layers)]
for panel in train.panels(words, *map(backend.to_numpy, train.looks(models, words, backend))):
    heatmap.show(Console(), panel)

# 6. The same on the other backends, for a few steps: the losses differ by rounding.

FEW = 10
curves = {backend.name: losses[:FEW]}
for name in registry.registered():
    try:
        other = choose(name)
    except BackendError:
        continue  # its framework is not installed
    if name != backend.name:
        curves[name] = train.train(kind, train.lesson(other, FEW), other, after=lambda: None).losses
for name, curve in curves.items():
    print(f"{name:8s}", " ".join(f"{loss:.6f}" for loss in curve[:6]), "...")
print(f"largest difference in {FEW} steps: {train.largest_difference(list(curves.values())):.1e}")
