# Made by `python -m benchmarks.reference` from the settings: edit them, and run it again.
from collections.abc import Sequence
from os import PathLike
from typing import Literal

from unet_ddp.cli.signature import Items
from unet_ddp.commands.trained_run import TrainedRun

def train(
    *,
    images: str | PathLike[str] | Items | None = None,
    masks: str | PathLike[str] | Items | None = None,
    list: str | PathLike[str] | None = None,
    reader: object = (),
    mask_suffix: str | None = None,
    val_images: str | PathLike[str] | Items | None = None,
    val_masks: str | PathLike[str] | Items | None = None,
    scale: float = 1.0,
    ground_resolution: float | None = None,
    crop_size: Sequence[int] | None = None,
    window: int | None = None,
    blocks: int | None = None,
    validation: float = 10.0,
    group_pattern: str | None = None,
    fold: str | None = None,
    validation_images: int | None = None,
    channels: int | None = None,
    nodata: float | None = None,
    classes: int | None = None,
    class_names: Sequence[str] | None = None,
    round_masks: bool = False,
    palette: str | PathLike[str] | None = None,
    mask_threshold: int | None = None,
    invert: bool = False,
    instances: bool = False,
    overlap: bool = False,
    class_field: str | None = None,
    all_masks: bool = False,
    ignore_index: int | None = None,
    resize_masks: bool = False,
    balance: float = 0.0,
    shares: Sequence[str] = (),
    scale_jitter: Sequence[float] | None = None,
    augmentation: object = "photo",
    model: object = "unet",
    encoder: str | None = None,
    encoder_weights: str | None = None,
    width: int = 32,
    bilinear: bool = False,
    batch_norm: Literal["global", "local"] = "global",
    checkpointing: bool = False,
    epochs: int = 10,
    epoch_steps: int | None = None,
    patience: int = 0,
    batch_size: int | Literal["auto"] = 4,
    accumulate: int = 1,
    images_per_step: int | None = None,
    learning_rate: float | Literal["auto"] = 0.001,
    lr: float | Literal["auto"] | None = None,
    warmup: float = 5.0,
    encoder_rate: float = 1.0,
    freeze: Literal["none", "encoder"] = "none",
    weight_decay: float = 0.0001,
    clip: float = 1.0,
    loss: object = "dice_ce",
    loss_weights: Sequence[float] = (1.0, 1.0),
    class_weights: Sequence[float] | None = None,
    label_smoothing: float = 0.0,
    hard_pixels: float = 100.0,
    boundary_weight: float | None = None,
    precision: Literal["auto", "float32", "bfloat16", "float16"] = "auto",
    compile: bool = False,
    compress_gradients: bool = False,
    ema: float = 0.0,
    seed: int = 0,
    checkpoints: str | PathLike[str] = "checkpoints",
    exp_name: str | None = None,
    save_every: int = 0,
    save_every_steps: int = 0,
    save_every_minutes: float = 10.0,
    load: str | PathLike[str] | None = None,
    wandb: bool = False,
    mlflow: bool = False,
    resume: bool | str | PathLike[str] | None = None,
    overwrite: bool = False,
    config: str | None = None,
    budget: str | None = None,
    stop_after: str | None = None,
    nproc: int = 1,
    workers: int | None = None,
    cache: bool = False,
    device: Literal["auto", "cpu", "cuda"] = "auto",
    timeout: float = 600.0,
    max_bad_steps: int = 20,
    skip_bad_files: int = 0,
    rescue_dir: str | None = None,
    log: Literal["text", "json"] = "text",
    profile: bool = False,
    callback: object = (),
    deterministic: bool = False,
    changed_code: bool = False,
    amp: bool | None = None,
) -> TrainedRun:
    """Train a U-Net, as train.py does, and return its run.

    Args:
        images: Folder of images, or its address (s3://bucket/folder, gs://, az://), or a pack,
            which has the masks too, or MODULE:NAME (docs/how-to/from-arrays.md) (default:
            data/imgs, or the built-in demo set if that is empty).
        masks: Folder, or address, of masks named like their images, e.g. image.png or
            image_mask.gif for image.jpg, or a file of polygons on the map (docs/maps.md) (default:
            data/masks).
        list: CSV file of pairs instead of two folders, with paths or addresses (http:// too):
            columns image,mask and optionally group,split,source; a split is training, validation or
            test.
        reader: Reader of your own for images or masks of other kinds of files; docs/own_parts.md.
        mask_suffix: Text that mask names add to the image's name, e.g. _mask (default: detected).
        val_images: Folder of validation images, instead of a share of --images.
        val_masks: Folder of the masks of --val-images.
        scale: Resize images to this fraction of their size, 0 < FACTOR <= 1, in training and
            prediction. (default: 1)
        ground_resolution: Bring images with map coordinates, which need not have one resolution
            then, to pixels of this size on the ground, before scaling.
        crop_size: Train on random crops of this size, after scaling (default: whole images if all
            have one size, else crops of the median size).
        window: Read images by windows of N x N pixels, before scaling: for scenes that are too
            large to read whole; a multiple of 32 (docs/how-to/scenes.md).
        blocks: With --window: hold out blocks of N x N windows for validation, apart from the
            others, instead of whole scenes.
        validation: Percentage of the images held out for validation; groups are kept whole.
            (default: 10)
        group_pattern: Images whose names match with the same text in the first bracket are one
            group, never split between training and validation (default: detected).
        fold: Cross-validation: divide the groups of images into K folds and validate on the I-th,
            e.g. 1/5.
        validation_images: Score at most N of the validation images after each epoch, always the
            same, which choose best.pt; evaluate scores all.
        channels: Channels of the network's input: 1 grey, 3 colour, 4 colour and transparency
            (default: as in the images).
        nodata: Value of image pixels without data, e.g. -9999 or nan; these pixels are ignored
            everywhere.
        classes: Number of classes, including the background (default: counted in the masks).
        class_names: A name for each class, in the order of the mask values; with --instances, for
            each class of objects (docs/objects.md).
        round_masks: With --classes or --palette: other mask values, of soft edges or JPEG, count as
            the nearest class.
        palette: CSV file of the classes: lines of name,value or name,#rrggbb; the one called ignore
            is excluded.
        mask_threshold: Two classes: every value above this one is foreground: 0 for numbered
            objects, 127 for masks with soft edges.
        invert: Two classes: treat dark pixels as foreground.
        instances: Each object has a different number, or colour, in its mask: learn background,
            objects and their borders, and predict numbered objects (needs the extra objects;
            docs/objects.md).
        overlap: Classes may overlap: masks are a folder for each class, a page of a TIFF for each,
            or bit fields; each class is learnt and predicted by itself
            (docs/how-to/overlapping-classes.md).
        class_field: Masks are polygons (--masks labels.gpkg, .geojson or .shp): their attribute
            with the class, a text or a whole number (default: all are of one class; docs/maps.md).
        all_masks: With --overlap: an image that lacks a mask in a class's folder is an error;
            without the flag, it has no pixel of the class.
        ignore_index: Mask value, or colour as #rrggbb, of pixels excluded from the loss and the
            scores.
        resize_masks: Resize masks that differ in size from their images, by nearest neighbour.
        balance: Percentage of the training samples that are chosen by class, each class as often as
            any other, with crops around one of its pixels; e.g. 50 if classes are rare. (default:
            0)
        shares: Share of each step that is taken from each source in --list, or in a pack of one,
            e.g. street=0.7 night=0.3; an epoch has as many steps as without. With auto, half is
            from dark and half from bright images, if one kind is rare.
        scale_jitter: Resize each training image by a random factor before its crop, e.g. 0.5 2;
            whole images are cropped or padded to their size.
        augmentation: photo: mirroring, small shifts, zooms and rotations, brightness, contrast and
            colour; overhead: also upside down, for microscope, aerial and satellite images; street:
            mirroring and strong changes of colour; none. MODULE:NAME is one of your own;
            docs/own_parts.md. (default: photo)
        model: unet (the classic U-Net), unet++, fpn, deeplabv3plus, segformer or another of
            segmentation-models-pytorch; or one of your own as MODULE:FUNCTION; docs/own_parts.md.
            (default: unet)
        encoder: Encoder of segmentation-models-pytorch, e.g. resnet34, tu-efficientnet_b0 or
            efficientnet-lite0; unet is then that library's.
        encoder_weights: Pretrained weights for the encoder: imagenet, downloaded once or from the
            extra pretrained (efficientnet-lite0 to 2); or a file of timm, torchvision or this
            program. With that extra, few images start from imagenet if no flag names a network.
        width: Classic U-Net: channels of the first level; the paper's has 64. (default: 32)
        bilinear: Classic U-Net: bilinear upsampling instead of transposed convolutions.
        batch_norm: Batch norm's statistics in training: of the batches of all processes, or of each
            process's own: faster on slow networks, but the run then depends on their number.
            (default: global)
        checkpointing: Classic U-Net: recompute activations in the backward pass to save memory.
        epochs: Passes over the training images; with --epoch-steps, epochs of so many steps.
            (default: 10)
        epoch_steps: Steps of an epoch, whatever the number of images; these are shuffled again each
            time that all were used (default: one pass over the images).
        patience: When so many epochs bring no better score of validation, lower the learning rate
            to its end within a tenth of the epochs done, then stop; 0: off. (default: 0)
        batch_size: Images per batch and process; auto: as many as fit into memory, with
            --accumulate to reach --images-per-step. (default: 4)
        accumulate: Batches per optimizer step; loss and batch norm see one batch at a time.
            (default: 1)
        images_per_step: Images per optimizer step over all processes, instead of --accumulate
            (default with --batch-size auto: 16).
        learning_rate: Peak learning rate of AdamW, reached after the warm-up; a cosine then lowers
            it to a hundredth. auto: found by steps at a rising rate, which are thrown away.
            (default: 0.001)
        lr: The same as learning_rate.
        warmup: Percentage of all steps in which the learning rate rises to its peak. (default: 5)
        encoder_rate: Learning rate of the encoder (classic U-Net: its way down), as a share of
            --learning-rate, e.g. 0.1. (default: 1)
        freeze: encoder: keep its weights and batch norm statistics as loaded, and train the rest.
            (default: none)
        weight_decay: Decoupled weight decay of AdamW. (default: 0.0001)
        clip: Largest norm of the gradients, longer ones are scaled down to it; 0: no clipping.
            (default: 1)
        loss: Terms of the loss. Over regions: dice, tversky (misses weigh more than false alarms;
            for small objects) or lovasz (IoU). Over pixels: ce (cross-entropy) or focal (sure
            pixels count less). MODULE:CLASS is one of your own, +ce added for both; docs/losses.md.
            (default: dice_ce)
        loss_weights: Weights of the loss's terms: of Dice, Tversky or Lovász, and of cross-entropy
            or focal. (default: 1 1)
        class_weights: One weight per class, used in both terms.
        label_smoothing: Percentage of each pixel's truth that the pixel term gives to all classes
            alike, e.g. 10. (default: 0)
        hard_pixels: Average the pixel term over only this percentage of the global batch's pixels,
            the ones with the highest loss (online hard example mining), e.g. 25. (default: 100)
        boundary_weight: Extra weight in the pixel term for pixels near a class boundary, e.g. 5; 0:
            off (default: 5 with --instances, else 0).
        precision: Type that the network computes in. auto: bfloat16, mixed, if the GPU supports it
            or the CPU is faster in it (AMD AVX512-BF16, Intel AMX). Otherwise GPUs take float16 and
            CPUs float32. (default: auto)
        compile: Compile network and loss with torch.compile: a minute at the start, faster steps
            after it; not with --checkpointing.
        compress_gradients: Send gradients between processes in bfloat16: half the bytes, for
            Ethernet; the weights differ by its rounding.
        ema: Score, save and predict with an exponential moving average of the weights of this
            decay, e.g. 0.999, which is less in the first steps; 0: off. (default: 0)
        seed: Seed of everything random: weights, split, order, augmentation, dropout. (default: 0)
        checkpoints: Folder of runs, or its address in object storage (s3://bucket/folder, gs://,
            az://): files are then written to the user's cache folder first (XDG_CACHE_HOME), and
            uploaded from there. (default: checkpoints)
        exp_name: Save the run in the sub-folder NAME of --checkpoints (default: in --checkpoints
            itself).
        save_every: Also keep the checkpoint of every so many epochs, as epoch_0005.pt; 0: last.pt
            and best.pt only. (default: 0)
        save_every_steps: Also write last.pt every N optimizer steps; 0: off. (default: 0)
        save_every_minutes: Also write last.pt when the previous one is M minutes old; 0: off.
            (default: 10)
        load: Start from the weights in this checkpoint or run folder (or s3:// address), of this
            program or another; classes and channels may differ.
        wandb: Also log to Weights & Biases (extra wandb); a recipe or checkpoint can't turn it on.
        mlflow: Also log to MLflow, to the server or folder that MLFLOW_TRACKING_URI names (extra
            mlflow); a recipe or checkpoint can't turn it on.
        resume: Continue the run in its folder where it stopped, on any machine if that is an
            address, or continue from the checkpoint FILE.
        overwrite: Delete the run in the folder and start a new one.
        config: Recipe: a YAML file of settings, named as the flags are, or camvid, camvid_imagenet,
            carvana, carvana_imagenet, cells or cells_imagenet, which are in the package; flags take
            precedence.
        budget: Time of a whole new run, e.g. 90s, 30m or 2h, instead of --epochs: some steps are
            timed, and as many epochs planned as end in it.
        stop_after: Stop after N optimizer steps in all, or after N of the --epochs, e.g. 500 or
            3epochs; continue with --resume.
        nproc: Start N processes on this machine, as torchrun --nproc_per_node=N does. (default: 1)
        workers: Data loading processes per training process (default: by the number of cores, at
            most 16).
        cache: Decode and scale each pair once, and keep it in the user's cache folder
            (XDG_CACHE_HOME) for this and later runs.
        device: auto: a GPU if there is one. (default: auto)
        timeout: Longest wait of a process for the others before it gives up. (default: 600)
        max_bad_steps: Stop after N steps in a row with a non-finite loss or gradient; single ones
            are skipped. (default: 20)
        skip_bad_files: Leave out up to N pairs whose files the scan can't read; 0: stop at the
            first. (default: 0)
        rescue_dir: Fallback folder for the final checkpoint, if the run's folder can't be written
            to; made and tried at the start (default: the system's temporary folder).
        log: json: print a JSON object in each line, also for warnings and errors, all on standard
            output; docs/files.md. (default: text)
        profile: Print where the time of ten steps goes, and save their trace in the run's folder.
        callback: Callbacks of your own, which follow the run and may end it; docs/own_parts.md.
        deterministic: Use deterministic algorithms, slower on a GPU; warn where torch has none.
        changed_code: Continue a run although the source of a part of your own has changed since its
            last save.
        amp: False for --precision float32.
    """
