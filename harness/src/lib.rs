//! Confirms the simulator over sockets.
//!
//! A scenario of `relent-sim` runs on 127.0.0.1: its service is an HTTP server in a separate process, its clients are
//! processes with a [`relent_reqwest::Client`] for each client process of the scenario. Requests, service times,
//! outages and limiter are those of the simulator, and the metrics follow its rules ([`relent_sim::requests`],
//! [`relent_sim::Serving`], [`relent_sim::Observed`]). So simulated and measured runs differ only in the medium:
//! sockets, timers, HTTP, the scheduler, and the drivers around the decisions.

pub mod agreement;
pub mod case;
pub mod clients;
pub mod clock;
pub mod compare;
mod desk;
pub mod form;
mod layered;
pub mod processes;
pub mod records;
pub mod server;
pub mod stdin;
pub mod wire;
