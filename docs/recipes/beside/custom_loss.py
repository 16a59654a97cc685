"""A loss of one's own in Keras 3."""

import keras
import numpy as np
import pandas

random = np.random.default_rng(0)
hours = random.uniform(0, 24, [6000, 1]).astype("float32")
load = (5 + 3 * np.sin(hours / 24 * 2 * np.pi) + random.gamma(2, 0.2 + hours / 24)).astype("float32")
chances = [0.1, 0.5, 0.9]


@keras.saving.register_keras_serializable()
def quantile_loss(truth, guess):
    missed, share = truth - guess, keras.ops.convert_to_tensor(chances)
    return keras.ops.sum(keras.ops.maximum(missed * share, missed * (share - 1)), axis=1)


@keras.saving.register_keras_serializable()
class Below(keras.metrics.Mean):
    def __init__(self, number, **settings):
        super().__init__(**settings)
        self.number = number

    def update_state(self, truth, guess, sample_weight=None):
        return super().update_state(truth[:, 0] < guess[:, self.number], sample_weight)


model = keras.Sequential(
    [
        keras.Input([1]),
        keras.layers.Rescaling(1 / 12, -1),
        keras.layers.Dense(32, "tanh"),
        keras.layers.Dense(32, "tanh"),
        keras.layers.Dense(3),
    ]
)
model.compile(
    optimizer=keras.optimizers.Adam(0.005),
    loss=quantile_loss,
    metrics=[Below(i, name=f"below_{c}") for i, c in enumerate(chances)],
)

history = model.fit(
    hours[:4000],
    load[:4000],
    validation_data=(hours[4000:5000], load[4000:5000]),
    epochs=40,
    callbacks=[keras.callbacks.EarlyStopping(patience=8, restore_best_weights=True)],
)
pandas.DataFrame(history.history)[["loss", "val_loss"]].plot().figure.savefig("training.png")

bands = model.predict(hours[5000:])
print("below each line:", (load[5000:] < bands).mean(0))
print("pinball loss:", model.evaluate(hours[5000:], load[5000:], return_dict=True)["loss"])
model.save("load.keras")
