"""Fine-tuning in Keras 3."""

import keras
import numpy as np
import pandas
from sklearn.datasets import load_digits

digits = load_digits()
images, classes = (digits.images[..., None] / 16).astype("float32"), digits.target[:, None]
low, high = np.flatnonzero(digits.target < 5), np.flatnonzero(digits.target >= 5)
few, held_out = high[:50], high[200:]

base = keras.Sequential(
    [
        keras.Input([8, 8, 1]),
        keras.layers.Conv2D(32, 3, activation="relu", name="first"),
        keras.layers.Conv2D(64, 3, activation="relu", name="second"),
        keras.layers.MaxPooling2D(2, name="pool"),
        keras.layers.Flatten(),
        keras.layers.Dense(5),
    ]
)
loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
base.compile(optimizer=keras.optimizers.Adam(0.002), loss=loss)
base.fit(images[low], classes[low], epochs=10)
base.save("low.keras")

base = keras.saving.load_model("low.keras")
base.get_layer("first").trainable = False
features = keras.Model(base.inputs, base.get_layer("pool").output)
image = keras.Input([8, 8, 1])
h = features(keras.layers.RandomTranslation(0.125, 0.125, fill_mode="constant")(image))
h = keras.layers.Flatten()(h)
h = keras.layers.Dropout(0.3)(h)
scores = keras.layers.Dense(5, name="head")(h)
model = keras.Model(image, scores)
model.compile(optimizer=keras.optimizers.Adam(0.002), loss=loss, metrics=["accuracy"])

history = model.fit(
    images[few],
    classes[few] - 5,
    validation_data=(images[high[50:200]], classes[high[50:200]] - 5),
    epochs=100,
    batch_size=10,
    callbacks=[keras.callbacks.EarlyStopping(patience=20, restore_best_weights=True)],
)
pandas.DataFrame(history.history)[["accuracy", "val_accuracy"]].plot().figure.savefig("training.png")

print(model.evaluate(images[held_out], classes[held_out] - 5, return_dict=True))
answers = 5 + model.predict(images[held_out]).argmax(1)
print("fives read as nines:", ((digits.target[held_out] == 5) & (answers == 9)).sum())
model.save("high.keras")
