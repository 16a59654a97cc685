"""A backend of ``torch.compile``: graphs of Dynamo and AOTAutograd become programs, planned and run as such."""
