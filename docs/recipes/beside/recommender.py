"""A recommender in Keras 3."""

import keras
import numpy as np
import pandas

people, films, ratings = 1_000_000, 50_000, 2_000_000
random = np.random.default_rng(0)
wishes, offers = random.normal(size=[people, 2]), random.normal(size=[films, 2])
person = (people * random.random([ratings, 1]) ** 6).astype("int64")
film = (films * random.random([ratings, 1]) ** 2).astype("int64")
chance = 1 / (1 + np.exp(-4 * (wishes[person[:, 0]] * offers[film[:, 0]]).sum(1, keepdims=True)))
liked = (random.random([ratings, 1]) < chance).astype("float32")
held_out = ratings // 20

who = keras.Input([1], dtype="int64", name="person")
what = keras.Input([1], dtype="int64", name="film")
wish = keras.layers.Embedding(people, 4)(who)
offer = keras.layers.Embedding(films, 4)(what)
score = keras.layers.Flatten()(keras.layers.Dot(-1)([wish, offer]))
model = keras.Model([who, what], score)
model.compile(
    optimizer=keras.optimizers.Adam(0.02),
    loss=keras.losses.BinaryCrossentropy(from_logits=True),
    metrics=[keras.metrics.BinaryAccuracy(threshold=0)],
)

history = model.fit(
    [person[:-held_out], film[:-held_out]],
    liked[:-held_out],
    validation_data=([person[-held_out:], film[-held_out:]], liked[-held_out:]),
    epochs=3,
    batch_size=1024,
    callbacks=[keras.callbacks.EarlyStopping(patience=1, restore_best_weights=True)],
)
pandas.DataFrame(history.history)[["loss", "val_loss"]].plot().figure.savefig("training.png")

print(model.evaluate([person[-held_out:], film[-held_out:]], liked[-held_out:], return_dict=True))
seen = np.arange(2000)
found = model.predict([np.full([2000, 1], 3), seen[:, None]])[:, 0]
best = seen[np.argsort(-found)[:10]]
print("ten films for person 3:", best, "which they like with", (1 / (1 + np.exp(-4 * offers[best] @ wishes[3]))).round(2))
model.save("films.keras")
