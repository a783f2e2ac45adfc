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
        "report": "unet_ddp.commands.report:main",
        "compare": "unet_ddp.extras.report.compare:main",
        "tune": "unet_ddp.extras.tune.command:main",
        "learning-curve": "unet_ddp.commands.learning_curve:main",
        "export": "unet_ddp.commands.export:main",
        "demo": "unet_ddp.extras.demo.command:main",
        "serve": "unet_ddp.extras.serve.command:main",
        "demo-data": "unet_ddp.extras.demo_set.command:main",
    },
    # by the kind of masks, when a checkpoint is read: a subclass of Labels, made of its plain values
    "labels": {
        "classes": "unet_ddp.data.labels:Labels",
        "objects": "unet_ddp.extras.objects.labels:ObjectLabels",
        "overlap": "unet_ddp.extras.overlap.labels:OverlapLabels",
    },
    # by `Labels.activation`, when something is predicted: (Labels) -> Activation of prediction/activation.py
    "activations": {
        "softmax": "unet_ddp.prediction.activation:Softmax",
        "sigmoid": "unet_ddp.extras.overlap.activation:Sigmoid",
    },
    # by the same, when pixels are counted for scores: a subclass of Counts
    "counts": {
        "softmax": "unet_ddp.metrics.counts:Counts",
        "sigmoid": "unet_ddp.extras.overlap.counts:ClassCounts",
    },
    # by the same, when a run begins: (OptimizationConfig) -> SegmentationLoss
    "objectives": {
        "softmax": "unet_ddp.training.losses:SegmentationLoss",
        "sigmoid": "unet_ddp.extras.overlap.loss:OverlapLoss",
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
    # when the configurations are defined: a class, whose fields join those of its `place`
    "settings": {
        "objects": "unet_ddp.extras.objects.settings:ObjectSettings",
        "overlap": "unet_ddp.extras.overlap.settings:OverlapSettings",
        "losses": "unet_ddp.extras.losses.settings:FactorSettings",
        "wandb": "unet_ddp.extras.wandb.settings:WandbSettings",
        "budget": "unet_ddp.extras.planners.settings:BudgetSettings",
        "palettes": "unet_ddp.extras.palettes.settings:PaletteSettings",
        "sampling": "unet_ddp.extras.sampling.settings:SamplingSettings",
        "cache": "unet_ddp.extras.cache.settings:CacheSettings",
        "profile": "unet_ddp.extras.diagnose.settings:ProfileSettings",
        "deterministic": "unet_ddp.extras.diagnose.settings:DeterministicSettings",
        "lists": "unet_ddp.extras.outputs.settings:ListSettings",
        "object_table": "unet_ddp.extras.objects.settings:ObjectTableSettings",
        "annotations": "unet_ddp.extras.outputs.settings:AnnotationSettings",
        "rank": "unet_ddp.extras.rank.settings:RankSettings",
        "against": "unet_ddp.extras.against.settings:AgainstSettings",
    },
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
        "profile": "unet_ddp.extras.diagnose.profiling:StepProfile",
    },
    # when a prediction begins, by the setting or --write: (PredictConfig, Labels, ImageFormat) -> Output
    "outputs": {
        "mask": "unet_ddp.prediction.outputs.mask:MaskFile",
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
    # single functions and classes, each asked for by its name alone
    "extras": {
        # a command line is read, and may have flags of earlier versions: (words, names of the command's settings) -> words
        "translate_argv": "unet_ddp.extras.earlier.spellings:translate_argv",
        # a recipe or a checkpoint is read: (settings by their names) -> settings; a second argument begins notes
        "translate": "unet_ddp.extras.earlier.spellings:translate",
        # a recipe has a key that is no setting: (key) -> the key if it was one, otherwise nothing
        "earlier_name": "unet_ddp.extras.earlier.spellings:earlier_name",
        # -- the data
        # tar shards: (their folder) -> Pairs
        "open_pack": "unet_ddp.extras.packs.pairs:open_pack",
        # any file at an address: (pairs) -> Pairs
        "remote_pairs": "unet_ddp.extras.cloud.pairs:CloudPairs",
        # any mask in a folder for each class: (pairs) -> Pairs
        "class_folder_pairs": "unet_ddp.extras.overlap.folders:ClassFolderPairs",
        # masks are listed, where these may be: (folders of images and masks, files of both by name, stamps, suffix)
        # -> masks by name
        "merge_class_masks": "unet_ddp.extras.overlap.folders:merge_class_masks",
        # -- what is at s3://, gs://, az:// or http://
        # files.as_path: (text) -> Path
        "open_address": "unet_ddp.extras.cloud.remote:open_address",
        # files.replacing: (path) -> context of a temporary file, which is put there
        "replace_address": "unet_ddp.extras.cloud.remote:replacing_object",
        # files.check_writable: (folder, flag)
        "check_address": "unet_ddp.extras.cloud.objects:check_answers",
        # before images are predicted: (paths that are needed next)
        "fetch_ahead": "unet_ddp.extras.cloud.objects:fetch_ahead",
        # TrainConfig.folder: (address) -> the run's folder on this machine
        "run_folder": "unet_ddp.extras.cloud.remote:working_folder",
        # RunFolder: (TrainConfig, log) -> Mirror
        "mirror": "unet_ddp.extras.cloud.mirror:CloudMirror",
        # `report`: (address) -> context of a copy of the run
        "run_copy": "unet_ddp.extras.cloud.report:local_run",
        # loaders: (data set, sampler, batch_size=, workers=) -> arguments of DataLoader
        "how_to_read": "unet_ddp.extras.cloud.reading:how_to_read",
    },
}
