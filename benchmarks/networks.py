"""Published networks that no library provides, each written from its description.

They are built to find layers, tensors and operations on PyTorch's meta device, where nothing is
computed; none of them is trained.
"""

# mypy: ignore-errors

from __future__ import annotations

import itertools

import torch
from torch import nn
from torchvision.models import resnet
from torchvision.ops import misc


def resnext101_32x4d() -> nn.Module:
    """ResNeXt-101, 32 groups of 4 channels (Xie et al., CVPR 2017)."""
    return resnet.ResNet(resnet.Bottleneck, [3, 4, 23, 3], groups=32, width_per_group=4)


class _Squeezed(resnet.Bottleneck):
    """A bottleneck block with squeeze and excitation, reduced 16 times (Hu et al., CVPR 2018)."""

    def __init__(self, inplanes, planes, *rest, **named):
        super().__init__(inplanes, planes, *rest, **named)
        channels = planes * self.expansion
        excited = misc.SqueezeExcitation(channels, channels // 16)
        self.bn3 = nn.Sequential(self.bn3, excited)


def se_resnext101_32x4d() -> nn.Module:
    """SE-ResNeXt-101, 32 groups of 4 channels."""
    return resnet.ResNet(_Squeezed, [3, 4, 23, 3], groups=32, width_per_group=4)


class SSD300(nn.Module):
    """SSD at 300 x 300 with ResNet-50 as in MLPerf (Liu et al., ECCV 2016; 81 classes of COCO).

    The backbone ends after the third stage, which keeps its resolution.
    """

    CLASSES = 81
    CHANNELS = (1024, 512, 512, 256, 256, 256)
    INNER = (256, 256, 128, 128, 128)
    BOXES = (4, 6, 6, 6, 4, 4)

    def __init__(self):
        super().__init__()
        base = resnet.ResNet(resnet.Bottleneck, [3, 4, 6, 3])
        first = base.layer3[0]
        first.conv1.stride = first.conv2.stride = first.downsample[0].stride = (1, 1)
        stages = [base.layer1, base.layer2, base.layer3]
        self.features = nn.Sequential(base.conv1, base.bn1, base.relu, base.maxpool, *stages)
        self.extra = nn.ModuleList()
        pairs = zip(self.CHANNELS, self.INNER, self.CHANNELS[1:], strict=False)
        for i, (before, inner, after) in enumerate(pairs):
            step = {"padding": 1, "stride": 2} if i < 3 else {}
            self.extra.append(
                nn.Sequential(
                    nn.Conv2d(before, inner, 1, bias=False),
                    nn.BatchNorm2d(inner),
                    nn.ReLU(),
                    nn.Conv2d(inner, after, 3, bias=False, **step),
                    nn.BatchNorm2d(after),
                    nn.ReLU(),
                )
            )
        heads = list(zip(self.CHANNELS, self.BOXES, strict=True))
        self.boxes = nn.ModuleList(nn.Conv2d(c, 4 * n, 3, padding=1) for c, n in heads)
        self.classes = nn.ModuleList(nn.Conv2d(c, self.CLASSES * n, 3, padding=1) for c, n in heads)

    def forward(self, images):
        maps = [self.features(images)]
        for block in self.extra:
            maps.append(block(maps[-1]))
        found = []
        for heads in (self.boxes, self.classes):
            found += [head(one).flatten(1) for one, head in zip(maps, heads, strict=True)]
        return torch.cat(found, 1)


class NeuMF(nn.Module):
    """Neural collaborative filtering on MovieLens-20M (He et al., WWW 2017), as in MLPerf v0.5."""

    USERS, ITEMS, FACTORS = 138493, 26744, 64
    WIDTHS = (256, 256, 128, 64)

    def __init__(self):
        super().__init__()
        half = self.WIDTHS[0] // 2
        self.mf_user = nn.Embedding(self.USERS, self.FACTORS)
        self.mf_item = nn.Embedding(self.ITEMS, self.FACTORS)
        self.mlp_user = nn.Embedding(self.USERS, half)
        self.mlp_item = nn.Embedding(self.ITEMS, half)
        sizes = itertools.pairwise(self.WIDTHS)
        self.mlp = nn.ModuleList(nn.Linear(a, b) for a, b in sizes)
        self.final = nn.Linear(self.WIDTHS[-1] + self.FACTORS, 1)

    def forward(self, pairs):
        user, item = pairs[:, 0], pairs[:, 1]
        product = self.mf_user(user) * self.mf_item(item)
        deep = torch.cat([self.mlp_user(user), self.mlp_item(item)], 1)
        for layer in self.mlp:
            deep = torch.relu(layer(deep))
        return self.final(torch.cat([product, deep], 1))


class DLRMDense(nn.Module):
    """The dense part of DLRM on Criteo (Naumov et al., 2019), with the sizes of MLPerf v0.7.

    Its inputs are the 13 dense features and 26 embedded vectors of 128 numbers, side by side.
    """

    VECTORS, SIZE = 26, 128

    def __init__(self):
        super().__init__()
        self.bottom = _perceptron((13, 512, 256, self.SIZE))
        self.top = _perceptron((480, 1024, 1024, 512, 256))
        self.out = nn.Linear(256, 1)

    def forward(self, features):
        dense = self.bottom(features[:, :13])
        vectors = features[:, 13:].reshape(-1, self.VECTORS, self.SIZE)
        every = torch.cat([dense[:, None], vectors], 1)
        products = every @ every.transpose(1, 2)
        i, j = torch.tril_indices(self.VECTORS + 1, self.VECTORS + 1, -1)
        padding = dense.new_zeros(len(dense), 1)
        return self.out(self.top(torch.cat([dense, products[:, i, j], padding], 1)))


def _perceptron(sizes):
    pairs = itertools.pairwise(sizes)
    return nn.Sequential(*(m for a, b in pairs for m in (nn.Linear(a, b), nn.ReLU())))


class GNMT(nn.Module):
    """GNMT with 4 + 4 layers of 1024 (Wu et al., 2016), as in MLPerf: one embedding for both
    languages, normed Bahdanau attention that all layers of the decoder see."""

    VOCABULARY, SIZE = 32320, 1024

    def __init__(self):
        super().__init__()
        h = self.SIZE
        self.embedding = nn.Embedding(self.VOCABULARY, h)
        self.encoder = nn.ModuleList(
            [
                nn.LSTM(h, h, batch_first=True, bidirectional=True),
                nn.LSTM(2 * h, h, batch_first=True),
                nn.LSTM(h, h, batch_first=True),
                nn.LSTM(h, h, batch_first=True),
            ]
        )
        self.first = nn.LSTM(h, h, batch_first=True)
        self.query = nn.Linear(h, h, bias=False)
        self.key = nn.Linear(h, h, bias=False)
        self.score = nn.Linear(h, 1, bias=False)
        self.decoder = nn.ModuleList(nn.LSTM(2 * h, h, batch_first=True) for _ in range(3))
        self.classifier = nn.Linear(h, self.VOCABULARY)

    def forward(self, words):
        source, target = (self.embedding(half) for half in words.chunk(2, 1))
        for i, layer in enumerate(self.encoder):
            made, _ = layer(source)
            source = made + source if i > 1 else made
        found, _ = self.first(target)
        pairs = torch.tanh(self.query(found)[:, :, None] + self.key(source)[:, None])
        context = self.score(pairs)[..., 0].softmax(-1) @ source
        for i, layer in enumerate(self.decoder):
            made, _ = layer(torch.cat([found, context], 2))
            found = made + found if i else made
        return self.classifier(found)


class TransformerBig(nn.Module):
    """The big Transformer for translation (Vaswani et al., 2017), with one shared embedding."""

    VOCABULARY, SIZE, HEADS, INNER, LAYERS = 33712, 1024, 16, 4096, 6

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(self.VOCABULARY, self.SIZE)
        self.transformer = nn.Transformer(
            self.SIZE, self.HEADS, self.LAYERS, self.LAYERS, self.INNER, batch_first=True
        )

    def forward(self, words):
        source, target = (self.embedding(half) for half in words.chunk(2, 1))
        return self.transformer(source, target) @ self.embedding.weight.T


class _RelativeAttention(nn.Module):
    def __init__(self, size, heads, head_size, memory):
        super().__init__()
        self.heads, self.head_size, self.memory = heads, head_size, memory
        self.qkv = nn.Linear(size, 3 * heads * head_size, bias=False)
        self.positions = nn.Linear(size, heads * head_size, bias=False)
        self.out = nn.Linear(heads * head_size, size, bias=False)
        self.norm = nn.LayerNorm(size)

    def forward(self, x):
        batch, length, size = x.shape
        whole = torch.cat([x.new_zeros(batch, self.memory, size), x], 1)
        q, k, v = self.qkv(whole).chunk(3, -1)
        r = self.positions(x.new_zeros(1, whole.shape[1], size))
        split = (-1, self.heads, self.head_size)
        q, k, v, r = (t.unflatten(2, split[1:]).transpose(1, 2) for t in (q[:, -length:], k, v, r))
        found = (q @ k.transpose(-1, -2) + q @ r.transpose(-1, -2)).softmax(-1) @ v
        return self.norm(x + self.out(found.transpose(1, 2).flatten(2)))


class TransformerXL(nn.Module):
    """Transformer-XL on WikiText-103 (Dai et al., ACL 2019), with NVIDIA's sizes.

    The words are in four clusters with ever smaller embeddings, used for input and output.
    """

    CUTS = (0, 19997, 39997, 199997, 267735)

    def __init__(self, layers, size, heads, inner, memory, smaller):
        super().__init__()
        cuts = (0, self.CUTS[-1]) if smaller == 1 else self.CUTS
        sizes = [b - a for a, b in itertools.pairwise(cuts)]
        self.embeddings = nn.ModuleList(
            nn.Embedding(count, size // smaller**i) for i, count in enumerate(sizes)
        )
        self.up = nn.ModuleList(
            nn.Linear(size // smaller**i, size, bias=False) if smaller > 1 else nn.Identity()
            for i in range(len(sizes))
        )
        self.blocks = nn.ModuleList()
        for _ in range(layers):
            self.blocks.append(_RelativeAttention(size, heads, size // heads, memory))
            self.blocks.append(
                nn.Sequential(
                    nn.Linear(size, inner), nn.ReLU(), nn.Linear(inner, size), nn.LayerNorm(size)
                )
            )
        self.bias = nn.ParameterList(torch.empty(count) for count in sizes)

    def forward(self, words):
        parts = zip(self.up, self.embeddings, strict=True)
        x = sum(up(embedding(words)) for up, embedding in parts)
        for block in self.blocks:
            x = block(x)
        # the logits of the most frequent words are always computed, others hardly ever
        first = self.embeddings[0].weight[: self.CUTS[1]]
        found = x.flatten(0, 1) @ first.T if len(self.up) == 1 else self.up[0](x) @ first.T
        unused = sum(bias.sum() for bias in self.bias)
        return found.sum() + unused


def transformer_xl_base() -> nn.Module:
    """16 layers of 512; 192 tokens with a memory of 192."""
    return TransformerXL(16, 512, 8, 2048, 192, 1)


def transformer_xl_large() -> nn.Module:
    """18 layers of 1024; 384 tokens with a memory of 384."""
    return TransformerXL(18, 1024, 16, 4096, 384, 4)
