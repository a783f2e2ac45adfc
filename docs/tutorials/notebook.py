# %% [markdown]
# # Train in a notebook
#
# You train a small network on drawn pictures, look at its scores, and predict a mask. No images and no GPU are needed.
# Install the program first: `python -m pip install -e .` in a clone of the repository, in the environment of your
# notebook.

# %% [markdown]
# ## Train
#
# The settings are the flags of `train.py`, with underscores. For your own images, add `images="imgs", masks="masks"`.
# Here both are left out: if the folder `data` has no images, the program draws some into `data/demo`.
#
# The settings after the name of the run keep the example short. Leave them out for your own images.

# %%
import unet_ddp

run = unet_ddp.train(exp_name="notebook", epochs=5, width=8, scale=0.5, learning_rate=0.003)

# %% [markdown]
# Interrupt the cell to save the run and end it. The same call with `resume=True` continues it. A call without it is
# refused, so that no run is lost:

# %%
try:
    unet_ddp.train(exp_name="notebook")
except unet_ddp.UserError as error:
    print(error)

# %% [markdown]
# ## Scores
#
# `run.metrics` has a dictionary for each epoch, with the columns of `metrics.csv`. A Dice of 1 is a perfect mask.

# %%
for row in run.metrics:
    print(f"epoch {row['epoch']:.0f}: loss {row['loss']:.3f}, Dice {row['validation_score']:.3f}")

# %%
import matplotlib.pyplot as plt

figure, axes = plt.subplots(figsize=(5, 3), layout="constrained")
axes.plot([row["epoch"] for row in run.metrics], [row["validation_score"] for row in run.metrics])
axes.set(xlabel="epoch", ylabel="validation Dice", ylim=(0, 1))

# %% [markdown]
# `report.html` in the run's folder has more: scores of each class, and the worst images first.

# %%
print(run.path / "report.html")

# %% [markdown]
# ## Predict
#
# A predictor takes a path, a Pillow image or an array. `prediction.to_image()` is the mask with the values of the
# training masks, `prediction.probabilities` has an array (classes, height, width).

# %%
from PIL import Image

predictor = run.predictor()
picture = Image.open("data/demo/unseen/car10_00.jpg")
prediction = predictor(picture)
for name, share in zip(predictor.labels.class_names, prediction.shares):
    print(f"class {name}: {share:.1%} of the pixels")

figure, panels = plt.subplots(1, 3, figsize=(9, 2.5), layout="constrained")
shown = {"picture": picture, "mask": prediction.to_image(), "car": prediction.probabilities[1]}
for panel, (title, pixels) in zip(panels, shown.items()):
    panel.imshow(pixels, cmap="gray")
    panel.set(title=title, xticks=[], yticks=[])

# %%
prediction.to_image().save("mask.png")

# %% [markdown]
# ## Next
#
# - [From Python](../how-to/from-arrays.md): arrays, several processes, your own parts, errors.
# - [Your own images](your-images.md): check your data and measure a network.
# - [Python](../reference/python.md): every function and class.
