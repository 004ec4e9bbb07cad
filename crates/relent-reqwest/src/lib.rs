//! A client over reqwest that retries, hedges and resumes.
//!
//! [`Client`] sends requests as often as a policy allows, and takes for granted what has to be known of
//! HTTP for that: which request may run twice, what a status or a broken connection means, what the
//! server said about time. All of that is in [`relent_http`]; this crate is what needs reqwest.
//!
//! ```no_run
//! use relent::Policy;
//! use relent_reqwest::Client;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::new(Policy::STANDARD)?; // was: reqwest::Client::new()
//! let response = client.get("https://example.com/").send().await?;
//! println!("{} after {} attempts", response.status(), response.attempts());
//! # Ok(())
//! # }
//! ```
//!
//! # Which one?
//! | to | take |
//! |---|---|
//! | send a request, and read its body outside the attempts | [`RequestBuilder::send`] |
//! | have the whole body in memory, resumed where it was cut off | [`RequestBuilder::whole_body`] |
//! | write a body of any size somewhere | [`RequestBuilder::download`] into a [`Sink`] |
//! | go on with a download of another process | [`Download::resume`] |
//! | hear of the attempts of a download, and cancel it | [`Download::run`] |
//! | write the loop yourself | reqwest, a [`Driver`](relent::driver::Driver) and `relent_http::classify` |
//! | retry in a stack of reqwest-middleware | `RetryMiddleware`, with the feature `middleware` |
//! | retry the calls of another client | `relent_http::RetryLayer` |
//!
//! # Features
//! - `middleware`: `RetryMiddleware`, for a stack of reqwest-middleware.
//! - `tracing`: a span for each attempt, by OpenTelemetry's semantic conventions for HTTP, and the
//!   [events](https://docs.rs/relent/latest/relent/observe) of waits and give-ups.
//! - `metrics`: the counters of `relent`, with a name for the destination if it is given one.
//! - `blocking`: a [`blocking`] client, for programs without async code.
//! - `json`, `form`, `multipart`, `query`: what reqwest's features of the same names add to a request.
//!
//! # reqwest
//! This version is over reqwest 0.13, which is re-exported as [`reqwest`]: a builder, a form or a
//! redirect policy that is handed in has to be of the same version.
//!
//! ```
//! use relent::Policy;
//! use relent_reqwest::{Client, recipe, reqwest};
//!
//! let named = || recipe().user_agent("orders/1.0");
//! let client = Client::made_by(named, Policy::STANDARD)?;
//! let url: reqwest::Url = "https://example.com/".parse()?;
//! # drop((client, url));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Coming from another library: [`fetch_retry`] has every option side by side, and [`coming_from`] shows
//! programs before and after.
#![cfg_attr(docsrs, feature(doc_cfg))]

mod attempt;
#[cfg(feature = "blocking")]
pub mod blocking;
mod body;
mod call;
mod call_options;
mod classify;
mod client;
#[doc = include_str!("../docs/coming_from.md")]
pub mod coming_from {}
mod complete;
pub mod dns;
mod download;
mod download_hook;
mod error;
mod failed;
#[doc = include_str!("../docs/fetch_retry.md")]
pub mod fetch_retry {}
mod head;
#[cfg(feature = "middleware")]
mod middleware;
mod min_rate;
pub mod network;
mod partial;
mod plan;
mod race;
mod read_timeout;
mod receiving;
mod redirects;
mod request;
mod request_template;
mod response;
mod resumable;
mod route;
mod secret;
mod sink;
mod streamed;
mod whole_body;

pub use body::Body;
pub use client::{Client, recipe};
pub use download::Download;
pub use download_hook::DownloadHook;
pub use error::Error;
pub use failed::{AttemptError, Failed, Last};
#[cfg(feature = "middleware")]
pub use middleware::RetryMiddleware;
pub use receiving::Received;
pub use redirects::{RedirectRefused, limited, watched};
pub use relent_http::{HintOptions, IdempotencyKey, InvalidKey, KeyForm};
pub use request::RequestBuilder;
/// The version of reqwest that this crate is over.
pub use reqwest;
pub use response::Response;
pub use resumable::{NotResumable, Resumable};
pub use route::{InvalidRoute, Route};
pub use sink::{Sink, ToWriter};
