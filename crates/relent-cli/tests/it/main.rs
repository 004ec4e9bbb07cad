//! The integration tests of the crate, in one program.
#![allow(
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "tests may"
)]

mod cli;
mod conformance;
mod dashboards;
mod deliver;
mod deliver_api;
mod deliver_endpoints;
mod deliver_keys;
#[cfg(target_os = "linux")]
mod deliver_memory;
mod deliver_nats;
mod deliver_nats_users;
mod deliver_operate;
mod deliver_postgres;
mod deliver_support;
mod deliver_waits;
mod documents;
mod fetch;
mod fetch_curl;
mod fetch_file;
mod fetch_malformed;
mod fetch_network;
mod fetch_options;
mod fetch_output;
mod fetch_policy;
mod fetch_proxy;
mod fetch_resume;
mod fetch_socks;
mod fetch_support;
mod generated;
mod json_schema;
mod live;
mod packages;
mod run;
mod run_deadline;
mod run_policy;
mod run_signals;
mod run_stdin;
mod run_streams;
mod run_support;
mod run_terminal;
mod schedule;
mod schemas;
#[path = "../../../relent-reqwest/tests/scripted/mod.rs"]
mod scripted;
#[path = "../../../relent-server/src/servers.rs"]
mod servers;
mod simulate;
mod snippets;
mod support;
mod trace;
