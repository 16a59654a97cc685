"""The cells of a notebook in Keras 3."""

import keras
import numpy as np
import pandas
from sklearn.datasets import make_moons

points, classes = make_moons(600, noise=0.25, random_state=0)
points = points.astype("float32")


# %%
def network(rate):
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(32, "relu"), keras.layers.Dense(2)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(rate), loss=loss, metrics=["accuracy"])
    return model


# %%
found = {}
for rate in (0.001, 0.01, 0.1):
    model = network(rate)
    history = model.fit(points[:400], classes[:400], validation_data=(points[400:], classes[400:]), epochs=20, verbose=0)
    found[rate] = history.history["val_accuracy"][-1]
print(found)

# %%
best = max(found, key=found.get)
model = network(best)
history = model.fit(
    points[:400],
    classes[:400],
    validation_data=(points[400:], classes[400:]),
    epochs=100,
    callbacks=[keras.callbacks.EarlyStopping(patience=10, restore_best_weights=True)],
    verbose=0,
)
pandas.DataFrame(history.history)[["loss", "val_loss"]].plot().figure.savefig("training.png")
print(model.evaluate(points[400:], classes[400:], return_dict=True))

# %%
grid = np.stack(np.meshgrid(np.linspace(-2, 3, 60), np.linspace(-1.5, 2, 40)), -1).reshape(-1, 2).astype("float32")
chances = keras.ops.convert_to_numpy(keras.ops.softmax(model.predict(grid))).reshape(40, 60, 2)
print("the border is crossed in row 20 at", grid[np.flatnonzero(np.diff(chances[20, :, 1] > 0.5)), 0].round(2))
model.save("moons.keras")
