//! The Postgres store on a real server: behaviour that is specific to this store. The promises of all stores are in the
//! conformance suite.

#![allow(clippy::unwrap_used)] // this is test code

mod postgres_store {
    mod assignments;
    mod batches;
    mod cancel;
    mod claim;
    mod claim_cursors;
    mod connections;
    mod errors;
    mod fence;
    mod flush;
    mod heartbeat;
    mod hints;
    mod history;
    mod idle;
    mod inbox;
    mod migration_preparation;
    mod neighbours;
    mod plans;
    mod proxy;
    mod races;
    mod schema;
    mod settings;
    mod standby;
    mod support;
    mod tls;
}
