"""Generated code of the Pub/Sub API's wire contract; see scripts/gen_protos.sh."""
