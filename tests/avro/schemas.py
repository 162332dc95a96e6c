"""Schemas for tests of this directory."""

from __future__ import annotations

import json

ORDER = json.dumps(
    {
        "type": "record",
        "name": "Order_Event__e",
        "namespace": "com.sforce.eventbus",
        "fields": [
            {"name": "CreatedDate", "type": "long", "doc": "CreatedDate:DateTime"},
            {"name": "CreatedById", "type": "string", "doc": "CreatedBy:EntityId"},
            {"name": "City__c", "type": ["null", "string"], "default": None},
            {"name": "Amount__c", "type": ["null", "double"], "default": None},
        ],
    }
)

CHANGE = json.dumps(
    {
        "type": "record",
        "name": "AccountChangeEvent",
        "namespace": "com.sforce.eventbus",
        "fields": [
            {
                "name": "ChangeEventHeader",
                "type": {
                    "type": "record",
                    "name": "ChangeEventHeader",
                    "fields": [{"name": "commitTimestamp", "type": "long"}],
                },
            },
            {"name": "Name", "type": ["null", "string"], "default": None},
        ],
    }
)
