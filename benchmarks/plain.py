"""The loop that people write first, as a program: the baseline of benchmarks.speedrun.

Classic U-Net, one-cycle AdamW, cross-entropy and Dice, mirroring, all images in memory.
"""

import csv
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F

from unet_ddp.network.unet import UNet


def read(rows, scale, ignored):
    images, masks = [], []
    for row in rows:
        image, mask = Image.open(row["image"]), Image.open(row["mask"])
        size = round(image.width * scale), round(image.height * scale)
        image.draft("RGB", size)  # a JPEG is decoded smaller
        images.append(np.array(image.convert("RGB").resize(size, Image.Resampling.BOX)))
        masks.append(np.array(mask.resize(size, Image.Resampling.NEAREST), np.int64))
    masks = torch.tensor(np.stack(masks))
    images = torch.tensor(np.stack(images)).permute(0, 3, 1, 2).contiguous()
    return images, masks.masked_fill(masks == ignored, -100)


def normalise(images):
    mean, std = torch.tensor([[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]]).view(2, 1, 3, 1, 1)
    return (images / 255 - mean) / std


def dice_loss(logits, masks, classes):
    valid = (masks >= 0).unsqueeze(1)
    truth = F.one_hot(masks.clamp(min=0), classes).permute(0, 3, 1, 2) * valid
    probabilities = logits.softmax(1) * valid
    overlap = (probabilities * truth).sum((0, 2, 3))
    return 1 - (2 * overlap / (probabilities + truth).sum((0, 2, 3)).clamp(min=1e-6)).mean()


@torch.inference_mode()
def score(network, images, masks, classes):
    """Return Dice and IoU, of the foreground or the mean over classes, from all pixels together."""
    network.eval()
    counts = torch.zeros(classes, classes, dtype=torch.int64)
    for image, mask in zip(images.split(4), masks.split(4), strict=True):
        found = network(normalise(image)).argmax(1)
        valid = mask >= 0
        cells = torch.bincount(mask[valid] * classes + found[valid], minlength=classes**2)
        counts += cells.view(classes, classes)
    hits, total = counts.diag(), counts.sum(0) + counts.sum(1)
    scores = torch.stack([2 * hits / total, hits / (total - hits)])[:, total > 0]
    return (scores[:, 1] if classes == 2 else scores.mean(1)).tolist()


def main():
    began = time.monotonic()
    pairs, scale, width, classes, ignored, seed, epochs, minutes = sys.argv[1:]
    classes, epochs, budget = int(classes), int(epochs), 60 * float(minutes)
    if torch.cuda.is_available():
        torch.set_default_device("cuda")
    with Path(pairs).open() as file:
        rows = list(csv.DictReader(file))
    training, validation = (
        read([row for row in rows if row["split"] == split], float(scale), int(ignored))
        for split in ("training", "validation")
    )
    torch.manual_seed(int(seed))
    network = UNet(3, classes, width=int(width))
    optimizer = torch.optim.AdamW(network.parameters(), fused=True)
    steps = len(training[0]) // 4
    schedule = torch.optim.lr_scheduler.OneCycleLR
    epoch, one_cycle = 0, schedule(optimizer, 3e-3, total_steps=epochs * steps + 1)
    while epoch < epochs:
        network.train()
        for batch in torch.randperm(len(training[0]))[: 4 * steps].split(4):
            images, masks = (part[batch] for part in training)
            for k in range(4):
                if torch.rand(()) < 0.5:
                    images[k], masks[k] = images[k].flip(-1), masks[k].flip(-1)
            logits = network(normalise(images))
            loss = F.cross_entropy(logits, masks) + dice_loss(logits, masks, classes)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            one_cycle.step()
        epoch += 1
        dice, iou = score(network, *validation, classes)
        print(f"epoch {epoch}: validation Dice {dice:.4f}, IoU {iou:.4f}", flush=True)
        if budget and epoch == 1:  # as many epochs as end in time, in a cycle of that length
            epochs = max(1, int((budget - 4) / (time.monotonic() - began)))
            one_cycle = schedule(optimizer, 3e-3, total_steps=epochs * steps + 1)


if __name__ == "__main__":
    main()
