"""Several operators in one: the passes of PaddlePaddle's inference, and `paddle.incubate.nn`, write them into programs, and no layer does.

A step fuses the ops of layers by itself.
"""
