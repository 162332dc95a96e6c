"""How many bytes may be collected to the driver at a time, by what the session has.

Both settings are documented (Spark configuration, application properties), and have 1 GiB by
default.
"""

from __future__ import annotations

import re

from pyspark.sql import SparkSession

_MIB = 2**20
_UNITS = {"": 1, "k": 2**10, "m": _MIB, "g": 2**30, "t": 2**40, "p": 2**50}

# Sizes as Spark spells them, such as 512m or 1gb.
_SIZE = re.compile(r"(\d+)([kmgtp]?)b?")

# Share of the driver's memory: what is collected is there up to three times (Spark's results, the
# Arrow tables, and the files that are made of them), in at most half of the memory.
_OF_MEMORY = 6

# Share of the largest result: it has the bytes once, and with other columns.
_OF_RESULT = 2


def bytes_to_collect(spark: SparkSession, most: int) -> int:
    """Return how many bytes of payloads one step may collect, at most *most*.

    Raises:
        ValueError: A setting is not a size that Spark accepts.
    """
    memory = _size(str(spark.conf.get("spark.driver.memory", "1g")), default_unit=_MIB)
    result = _size(str(spark.conf.get("spark.driver.maxResultSize", "1g")))
    bounds = [most, memory // _OF_MEMORY]
    if result:  # 0 means no limit
        bounds.append(result // _OF_RESULT)
    return min(bounds)


def _size(text: str, *, default_unit: int = 1) -> int:
    found = _SIZE.fullmatch(text.strip().lower())
    if found is None:
        raise ValueError(f"{text!r} is not a size: use a form such as 512m or 1g")
    return int(found[1]) * (_UNITS[found[2]] if found[2] else default_unit)
