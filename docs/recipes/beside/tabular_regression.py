"""Tabular regression in Keras 3."""

import keras
import numpy as np
import pandas
from sklearn.datasets import load_diabetes
from sklearn.model_selection import train_test_split

diabetes = load_diabetes(scaled=False)
rows, progression = diabetes.data.astype("float32"), diabetes.target.astype("float32")
rows, test_rows, progression, test_progression = train_test_split(rows, progression, test_size=0.2, random_state=1)

normalization = keras.layers.Normalization()
normalization.adapt(rows)
model = keras.Sequential(
    [
        keras.Input([10]),
        normalization,
        keras.layers.Dense(64, "relu"),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(64, "relu"),
        keras.layers.Dropout(0.3),
        keras.layers.Dense(1),
        keras.layers.Rescaling(progression.std(), progression.mean()),
    ]
)
model.compile(optimizer=keras.optimizers.Adam(0.001), loss="mse", metrics=["mae"])
history = model.fit(
    rows[70:],
    progression[70:],
    validation_data=(rows[:70], progression[:70]),
    epochs=200,
    callbacks=[keras.callbacks.EarlyStopping("val_mae", patience=30, restore_best_weights=True)],
)
pandas.DataFrame(history.history)[["loss", "val_loss"]].plot().figure.savefig("training.png")

print(model.evaluate(test_rows, test_progression, return_dict=True))
guesses = model.predict(test_rows)[:, 0]
print("explained:", 1 - np.square(guesses - test_progression).mean() / test_progression.var())

model.save("diabetes.keras")
answer = keras.saving.load_model("diabetes.keras").predict(test_rows[:1])
print(answer)
