"""The table of the parts of this package that are found by name, and how each is asked for."""

from __future__ import annotations

# A point has several parts, which are asked the same. Above it: when, by what name, and (what they are called
# with). "By the setting": the part has the name of a setting with `Calls(point)`, which is not its default.
BUILT_IN: dict[str, dict[str, str]] = {
    # `python -m unet_ddp NAME ...`: (arguments of the command line) -> exit status
    "commands": {
        "train": "unet_ddp.commands.train:main",
        "predict": "unet_ddp.commands.predict:main",
        "doctor": "unet_ddp.commands.doctor:main",
        "evaluate": "unet_ddp.commands.evaluate:main",
        "import": "unet_ddp.extras.annotations.command:main",
        "pack": "unet_ddp.commands.pack:main",
        "report": "unet_ddp.extras.report.command:main",
        "compare": "unet_ddp.extras.report.compare:main",
        "tune": "unet_ddp.extras.tune.command:main",
        "learning-curve": "unet_ddp.commands.learning_curve:main",
        "export": "unet_ddp.extras.onnx.export:main",
        "demo": "unet_ddp.extras.demo.command:main",
        "serve": "unet_ddp.extras.serve.command:main",
        "demo-data": "unet_ddp.extras.demo_set.command:main",
    },
    # by `Labels.kind`, as a checkpoint has it: a subclass of Labels, made of its plain values
    "labels": {
        "classes": "unet_ddp.data.labels:Labels",
        "numbered objects": "unet_ddp.extras.objects.labels:ObjectLabels",
        "overlapping classes": "unet_ddp.extras.overlap.labels:OverlapLabels",
    },
    # by `Labels.head_name`, when something is predicted, scored or trained: (Labels) -> Head of heads.py
    "heads": {
        "softmax": "unet_ddp.heads:Softmax",
        "sigmoid": "unet_ddp.extras.overlap.head:Sigmoid",
    },
    # by suffix, when a file is first opened: a subclass of OpenFile, called with its path
    "readers": {
        **dict.fromkeys(
            ("jpg", "jpeg", "png", "gif", "bmp", "webp"), "unet_ddp.data.readers.pillow:PillowFile"
        ),
        "npy": "unet_ddp.extras.formats.npy:NpyFile",
        "tif": "unet_ddp.extras.geo.reader:MapFile",
        "tiff": "unet_ddp.extras.geo.reader:MapFile",
    },
    # when the configurations are defined, of installed packages: a class, whose fields join those of its `place`
    "settings": {},
    # each in turn, when a data set is to be found: a subclass of PairKind; folders read any file
    "pairs": {
        "list": "unet_ddp.data.pair_kinds:PairList",
        "items": "unet_ddp.extras.arrays.item_kind:ItemKind",
        "class_folders": "unet_ddp.extras.overlap.class_folder_kind:ClassFolders",
        "folders": "unet_ddp.data.pair_kinds:Folders",
        "pack": "unet_ddp.extras.packs.pack_kind:PackKind",
    },
    # by the scheme of an address, when one is first met: a subclass of Storage; "": files in archives of this machine
    "storage": dict.fromkeys(
        ("s3", "gs", "az", "http", "https", ""), "unet_ddp.extras.cloud.storage:ObjectStorage"
    ),
    # when the masks' values are known, by the setting: (MaskValues, DataConfig) -> Labels.
    # The first takes the place of the core's own rules; the palette's is one of them
    "label_rules": {
        "instances": "unet_ddp.extras.objects.rules:infer_object_labels",
        "overlap": "unet_ddp.extras.overlap.rules:infer_overlap_labels",
        "palette": "unet_ddp.extras.palettes.rules:match_palette",
    },
    # before the first step, by the setting: (TrainConfig, RunBuilder) -> the settings it replaces
    "planners": {
        "batch_size": "unet_ddp.extras.planners.batch_size:plan",
        "learning_rate": "unet_ddp.extras.planners.learning_rate:plan",
        "budget": "unet_ddp.extras.planners.budget:plan",
    },
    # by the words of --loss, as in dice+focal: (OptimizationConfig) -> Term of training/losses.py
    "losses": {
        "dice": "unet_ddp.training.losses:Dice",
        "ce": "unet_ddp.training.losses:CrossEntropy",
        "tversky": "unet_ddp.extras.losses.terms:Tversky",
        "lovasz": "unet_ddp.extras.losses.terms:Lovasz",
        "focal": "unet_ddp.extras.losses.terms:Focal",
    },
    # by --model: (channels, classes, **the settings that are its parameters) -> nn.Module
    "networks": {
        "unet": "unet_ddp.network.unet:UNet",
        "smp": "unet_ddp.extras.smp.networks:build",
    },
    # by --augmentation, beside its presets: (image, mask, generator) -> both
    "augmentations": {},
    # for a loss of pixels, by the setting: (OptimizationConfig) -> (Batch) -> factors (N, H, W)
    "pixel_factors": {
        "boundary_weight": "unet_ddp.extras.losses.factors:BoundaryWeight",
        "hard_pixels": "unet_ddp.extras.losses.factors:HardPixels",
    },
    # when a trained network is loaded, by suffix: (path, device, scale=, fold=, bfloat16=, network=, runtime=) -> LoadedModel
    "backends": {
        **dict.fromkeys(("pt", "pth", "ckpt"), "unet_ddp.prediction.backends:open_checkpoint"),
        "onnx": "unet_ddp.extras.onnx.backend:open_onnx",
    },
    # when the log begins, by the setting or --callback, on rank 0; runs/writers.py says which methods it may have:
    # (RunInfo) -> callback
    "callbacks": {
        "wandb": "unet_ddp.extras.wandb.writer:WandbWriter",
        "mlflow": "unet_ddp.extras.mlflow.writer:MlflowWriter",
        "profile": "unet_ddp.extras.diagnose.profiling:StepProfile",
    },
    # when a prediction begins, by the setting or --write: (PredictConfig, Labels, ImageFormat) -> Output
    "outputs": {
        "mask": "unet_ddp.prediction.outputs.mask:MaskFile",
        "no_mask": "unet_ddp.prediction.outputs.no_mask:NoMask",
        "class_masks": "unet_ddp.extras.overlap.output:ClassMasks",
        "overlay": "unet_ddp.prediction.outputs.overlay:Overlay",
        "probabilities": "unet_ddp.extras.outputs.probabilities:Probabilities",
        "rle": "unet_ddp.extras.outputs.rle:RunLengths",
        "objects": "unet_ddp.extras.objects.table:ObjectTable",
        "counts": "unet_ddp.extras.objects.table:CountTable",
        "polygons": "unet_ddp.extras.outputs.polygons:Polygons",
        "rank": "unet_ddp.extras.rank.output:Rank",
        "annotations": "unet_ddp.extras.outputs.annotations:open_annotations",
        "label_studio": "unet_ddp.extras.outputs.label_studio:LabelStudioFile",
    },
}
