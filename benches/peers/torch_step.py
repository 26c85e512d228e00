"""The training step of `csa2 bench step` in eager PyTorch: the quickstart's model, `swa full reuse*2`, with AdamW.

The same layers, sizes, losses and update as csa2: window and selected entries are gathered, one softmax with a sink; the
`full` layer's indexer chooses by Top-K and learns from its KL to the attention's own weights; gradients are limited for the
trunk and for the indexer apart.
"""

import time

import torch
from torch import nn
from torch.nn import functional as F

from common import Bench, arguments
from torch_ops import kl_gather, pick, select, softmax_with_sink, window_index

BATCH, SEQ, VOCAB, TARGETS = 32, 48, 40, 24
WIDTH, HEADS, DIM, ROPE, WINDOW, TOPK, INDEX_HEADS, INDEX_DIM, INNER = 64, 4, 32, 16, 4, 8, 4, 16, 128
RATE, BETAS, DECAY, CLIP, INDEX_LOSS = 3e-3, (0.9, 0.95), 0.01, 1.0, 1.0
MIX = ["swa", "full", "reuse", "reuse"]
THETA = {"swa": 1e4, "full": 16e4, "reuse": 16e4}


class RmsNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight, 1e-6)


def linear(inputs, outputs):
    return nn.Linear(inputs, outputs, bias=False)


def rope_table(theta):
    angles = torch.arange(SEQ)[:, None] * theta ** (-torch.arange(0, ROPE, 2) / ROPE)
    return torch.polar(torch.ones_like(angles), angles)


def rotate(x, table):
    """Turns the last channels of `x` [B, S, heads, d], adjacent pairs, by the angles of `table` [S, pairs]."""
    still, turned = x[..., :-ROPE], x[..., -ROPE:]
    pairs = torch.view_as_complex(turned.unflatten(3, (-1, 2)).contiguous())
    return torch.cat([still, torch.view_as_real(pairs * table[:, None]).flatten(3)], 3)


class Indexer(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.weights = linear(WIDTH, INDEX_HEADS * INDEX_DIM), linear(WIDTH, INDEX_HEADS)
        self.keys, self.norm = linear(DIM, INDEX_DIM), RmsNorm(INDEX_DIM)

    def forward(self, x, latent, table):
        x, latent = x.detach(), latent.detach()
        q = rotate(self.query(x).unflatten(2, (INDEX_HEADS, INDEX_DIM)), table)
        keys = rotate(self.norm(self.keys(latent))[:, :, None], table)[:, :, 0]
        return q, keys, self.weights(x) * (INDEX_DIM * INDEX_HEADS) ** -0.5


class Attention(nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.mode = mode
        self.query, self.window, self.output = linear(WIDTH, HEADS * DIM), linear(WIDTH, DIM), linear(HEADS * DIM, WIDTH)
        self.window_norm, self.sink = RmsNorm(DIM), nn.Parameter(torch.zeros(HEADS))
        if mode == "full":
            self.compress, self.compress_norm, self.indexer = linear(WIDTH, DIM), RmsNorm(DIM), Indexer()
        self.register_buffer("table", rope_table(THETA[mode]))
        self.register_buffer("near", window_index(SEQ, SEQ, WINDOW))
        self.register_buffer("future", torch.ones(SEQ, SEQ, dtype=torch.bool).triu(1))

    def forward(self, x, shared):
        q = rotate(self.query(x).unflatten(2, (HEADS, DIM)), self.table)
        window = rotate(self.window_norm(self.window(x))[:, :, None], self.table)[:, :, 0]
        if self.mode == "full":
            latent = self.compress_norm(self.compress(x))
            asked = self.indexer(x, latent, self.table)
            with torch.no_grad():
                shared["topk"] = select(*asked, None, self.future, TOPK)
            shared["main"] = rotate(latent[:, :, None], self.table)[:, :, 0]
        near = self.near.expand(x.shape[0], -1, -1)
        entries, listed = pick(window, near), near >= 0
        if self.mode != "swa":
            entries = torch.cat([entries, pick(shared["main"], shared["topk"])], 2)
            listed = torch.cat([listed, shared["topk"] >= 0], 2)
        logits = (q @ entries.mT * DIM**-0.5).masked_fill(~listed[:, :, None], float("-inf"))
        weights = softmax_with_sink(logits, self.sink)
        read = rotate(weights @ entries, self.table.conj())
        if self.mode == "full":
            teacher = weights.detach()[..., WINDOW:].sum(2)
            shared["loss"] = kl_gather(*asked, teacher, shared["topk"]).mean()
        return self.output(read.flatten(2))


class Block(nn.Module):
    def __init__(self, mode):
        super().__init__()
        self.attention_norm, self.attention = RmsNorm(WIDTH), Attention(mode)
        self.norm, self.gate, self.up, self.down = RmsNorm(WIDTH), linear(WIDTH, INNER), linear(WIDTH, INNER), linear(INNER, WIDTH)

    def forward(self, x, shared):
        x = x + self.attention(self.attention_norm(x), shared)
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(VOCAB, WIDTH), RmsNorm(WIDTH), linear(WIDTH, VOCAB)
        self.layers = nn.ModuleList(Block(mode) for mode in MIX)

    def forward(self, tokens):
        x, shared = self.embed(tokens), {}
        for layer in self.layers:
            x = layer(x, shared)
        return self.head(self.norm(x)), shared["loss"]


def main():
    args = arguments(__doc__.split("\n")[0]).parse_args()
    bench = Bench(args)
    model = Model()
    named = list(model.named_parameters())
    indexers = [p for name, p in named if ".indexer." in name]
    trunk = [p for name, p in named if ".indexer." not in name]
    groups = [
        {"params": [p for _, p in named if p.dim() >= 2], "weight_decay": DECAY},
        {"params": [p for _, p in named if p.dim() < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=1e-8)
    tokens = torch.randint(VOCAB, (BATCH, SEQ))
    # As in the task: the last tokens of every sequence are asked for.
    places = torch.arange(BATCH * SEQ).view(BATCH, SEQ)[:, -TARGETS:].flatten()
    targets = torch.randint(VOCAB, (BATCH * TARGETS,))

    def step():
        start = time.perf_counter()
        logits, index_loss = model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1)[places], targets) + INDEX_LOSS * index_loss
        loss.item()
        forward = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(trunk, CLIP)
        nn.utils.clip_grad_norm_(indexers, CLIP)
        backward = time.perf_counter()
        optimizer.step()
        return {"forward": forward - start, "backward": backward - forward, "optimizer": time.perf_counter() - backward}

    shape = {
        "batch": BATCH, "seq": SEQ, "layers": len(MIX), "d_model": WIDTH, "heads": HEADS, "dim": DIM, "topk": TOPK,
        "window": WINDOW,
    }
    bench.time("step", "quickstart", "eager", "step", shape, step, tokens=BATCH * SEQ)
    bench.print()


if __name__ == "__main__":
    main()
