//! HTTP client over reqwest that retries, hedges, and resumes downloads.
//!
//! [`Client`] sends a request as often as its policy allows. The rules of HTTP are in [`relent_http`]: which
//! requests may run twice, which statuses and network errors are failures, and which times the server asks for.
//! This crate adds the parts that need reqwest.
//!
//! ```no_run
//! use relent::Policy;
//! use relent_reqwest::Client;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(Policy::STANDARD)?; // was: reqwest::Client::new()
//! let response = client.get("https://example.com/").send().await?;
//! println!("{}, attempts: {}", response.status(), response.attempts());
//! # Ok(())
//! # }
//! ```
//!
//! # Which function?
//! | to | take |
//! |---|---|
//! | send a request, and read its body outside of the attempts | [`RequestBuilder::send`] |
//! | have the whole body in memory, resumed where it was cut off | [`RequestBuilder::whole_body`] |
//! | write a body of any size to a file or another sink | [`RequestBuilder::download`] into a [`Sink`] |
//! | continue a download that another process began | [`Download::resume`] |
//! | be notified of each attempt of a download, or cancel it | [`Download::run`] |
//! | write the loop yourself | reqwest, a [`Driver`](relent::driver::Driver) and `relent_http::classify` |
//! | retry in a stack of reqwest-middleware | `RetryMiddleware`, with the feature `middleware` |
//! | retry the calls of another client | `relent_http::RetryLayer` |
//!
//! # Features
//! - `middleware`: `RetryMiddleware`, for a stack of reqwest-middleware.
//! - `tracing`: a span for each attempt, by OpenTelemetry's semantic conventions for HTTP, and the
//!   [events](https://docs.rs/relent/latest/relent/observe) of delays and give-ups.
//! - `metrics`: the counters of `relent`, labelled with the destination if you name it.
//! - `blocking`: a [`blocking`] client, for programs without async code.
//! - `json`, `form`, `multipart`, `query`: request methods of the reqwest features with these names.
//!
//! # reqwest
//! This version uses reqwest 0.13 and re-exports it as [`reqwest`]. Builders, forms and redirect policies that
//! you pass in must come from the same version.
//!
//! ```
//! use relent::Policy;
//! use relent_reqwest::{Client, default_builder, reqwest};
//!
//! let named = || default_builder().user_agent("orders/1.0");
//! let client = Client::from_builder(named, Policy::STANDARD)?;
//! let url: reqwest::Url = "https://example.com/".parse()?;
//! # drop((client, url));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Migrating from another library: [`fetch_retry`] lists every option side by side, and [`coming_from`] shows
//! programs before and after.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod attempt;
#[cfg(feature = "blocking")]
pub mod blocking;
mod body;
mod call;
mod classify;
mod client;
mod retry_options;
#[doc = include_str!("../docs/coming_from.md")]
pub mod coming_from {}
mod attempt_failure;
mod complete;
pub mod dns;
mod download;
mod download_hook;
mod error;
#[doc = include_str!("../docs/fetch_retry.md")]
pub mod fetch_retry {}
mod download_loop;
#[cfg(feature = "middleware")]
mod middleware;
mod min_rate;
pub mod network;
mod race;
mod range_request;
mod read_timeout;
mod redirects;
mod request;
mod request_options;
mod request_template;
mod response;
mod response_head;
mod resumable;
mod route;
mod secret;
mod sink;
mod streamed;
mod whole_body;

pub use attempt_failure::{AttemptError, FailedAttempt, LastResult};
pub use body::Body;
pub use client::{Client, default_builder};
pub use download::Download;
pub use download_hook::{DownloadHook, NextDelay};
pub use download_loop::DownloadResult;
pub use error::Error;
#[cfg(feature = "middleware")]
pub use middleware::RetryMiddleware;
pub use redirects::{RedirectRefused, is_followed, limit_redirects, track_redirects};
pub use relent_http::{HintOptions, IdempotencyKey, InvalidKey, KeyForm};
pub use request::RequestBuilder;
/// The version of reqwest that this crate uses.
pub use reqwest;
pub use response::Response;
pub use resumable::{NotResumable, Resumable};
pub use route::{InvalidRoute, Route};
pub use sink::{Sink, ToWriter};
