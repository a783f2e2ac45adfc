"""The losses as their papers write them: loops over numpy arrays in float64, one process."""

from __future__ import annotations

import numpy as np

from unet_ddp.data.masks import IGNORE_ID

Array = np.ndarray


def softmax(logits: Array) -> Array:
    """Probabilities (N, C, H, W)."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def tversky(logits: Array, masks: Array, weights: Array, alpha: float) -> float:
    """Salehi et al. 2017, with beta = 1 - alpha; alpha = 1/2 is soft Dice (Milletari et al. 2016)."""
    p, valid = softmax(logits), masks != IGNORE_ID
    losses, present = [], []
    for c in range(logits.shape[1]):
        truth = masks[valid] == c
        guess = p[:, c][valid]
        hits = (guess * truth).sum()
        false_positives = (guess * ~truth).sum()
        false_negatives = ((1 - guess) * truth).sum()
        if truth.any():
            found = hits + alpha * false_positives + (1 - alpha) * false_negatives
            losses.append(1 - hits / found)
            present.append(weights[c])
    return float(np.average(losses, weights=present))


def lovasz(logits: Array, masks: Array, weights: Array) -> float:
    """Berman et al. 2018, Algorithm 1, for each image alone; then the mean over the images."""
    images = []
    for p, mask in zip(softmax(logits), masks, strict=True):
        losses, present = [], []
        valid = mask != IGNORE_ID
        for c in range(len(p)):
            truth = (mask[valid] == c).astype(float)
            if not truth.any():
                continue
            errors = np.abs(truth - p[c][valid])
            order = np.argsort(-errors, kind="stable")
            truth = truth[order]
            intersection = truth.sum() - truth.cumsum()
            union = truth.sum() + (1 - truth).cumsum()
            jaccard = 1 - intersection / union
            steps = np.diff(jaccard, prepend=0)
            losses.append(errors[order] @ steps)
            present.append(weights[c])
        if losses:
            images.append(np.average(losses, weights=present))
    return float(np.mean(images))


def pixel_term(
    logits: Array,
    masks: Array,
    weights: Array,
    *,
    gamma: float = 0.0,
    smoothing: float = 0.0,
    percent: float = 100.0,
    boundary: float = 0.0,
) -> float:
    """Return the weighted mean over pixels of cross-entropy (gamma 0) or focal loss.

    Lin et al. 2017 (gamma), Szegedy et al. 2016 (smoothing), Wu et al. 2016 (percent), Wei et al.
    2020 (boundary).
    """
    p, classes = softmax(logits), logits.shape[1]
    least = threshold(p, masks, percent)
    above = below = 0.0
    for n, y, x in np.argwhere(masks != IGNORE_ID):
        c = masks[n, y, x]
        if np.float32(-np.log(p[n, c, y, x])) < least:
            continue
        truth = np.full(classes, smoothing / classes)
        truth[c] += 1 - smoothing
        loss = -(weights * truth * (1 - p[n, :, y, x]) ** gamma * np.log(p[n, :, y, x])).sum()
        around = masks[n, max(0, y - 15) : y + 16, max(0, x - 15) : x + 16]
        around = around[around != IGNORE_ID]
        factor = 1 + boundary * np.abs((around == c).mean() - 1)
        above += factor * loss
        below += factor * weights[c]
    return above / below


def threshold(p: Array, masks: Array, percent: float) -> float:
    """The least loss among the hardest pixels, rounded down to 7 binary digits below the first."""
    losses = [-np.log(p[n, masks[n, y, x], y, x]) for n, y, x in np.argwhere(masks != IGNORE_ID)]
    kept = int(np.ceil(len(losses) * percent / 100))
    digits, exponent = np.frexp(np.float32(np.sort(losses)[-kept]))
    return 0.0 if percent == 100 else float(np.ldexp(np.floor(digits * 256) / 256, exponent))
