"""An image classifier with augmentation in Keras 3."""

import keras
import numpy as np
import pandas
from sklearn.datasets import load_digits

digits = load_digits()
images, labels = (digits.images[..., None] / 16).astype("float32"), digits.target[:, None]

model = keras.Sequential(
    [
        keras.Input([8, 8, 1]),
        keras.layers.RandomTranslation(0.125, 0.125, fill_mode="constant"),
        keras.layers.GaussianNoise(0.05),
        keras.layers.Conv2D(32, 3, padding="same"),
        keras.layers.BatchNormalization(momentum=0.9),
        keras.layers.ReLU(),
        keras.layers.Conv2D(64, 3, padding="same"),
        keras.layers.BatchNormalization(momentum=0.9),
        keras.layers.ReLU(),
        keras.layers.MaxPooling2D(2),
        keras.layers.Conv2D(64, 3, padding="same"),
        keras.layers.BatchNormalization(momentum=0.9),
        keras.layers.ReLU(),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dropout(0.2),
        keras.layers.Dense(10, "softmax"),
    ]
)
model.compile(optimizer=keras.optimizers.Adam(0.003), loss="sparse_categorical_crossentropy", metrics=["accuracy"])
history = model.fit(
    images[:1200],
    labels[:1200],
    validation_data=(images[1200:1500], labels[1200:1500]),
    batch_size=50,
    epochs=12,
    callbacks=[
        keras.callbacks.ReduceLROnPlateau(patience=2),
        keras.callbacks.ModelCheckpoint("digits.keras", "val_accuracy", save_best_only=True),
    ],
)
pandas.DataFrame(history.history)[["accuracy", "val_accuracy"]].plot().figure.savefig("training.png")

model = keras.saving.load_model("digits.keras")
print(model.evaluate(images[1500:], labels[1500:], return_dict=True))
print("taken for another:", np.flatnonzero(model.predict(images[1500:]).argmax(1) != digits.target[1500:]))
