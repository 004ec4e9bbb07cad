//! A gRPC call that is retried over a tonic channel. The server is unavailable twice, and states how long to wait.
#![allow(clippy::print_stdout)]

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes};
use futures_util::future::{BoxFuture, FutureExt, ready};
use http::uri::PathAndQuery;
use relent::{NamedPolicy, Summary};
use relent_http::RetryLayer;
use relent_http::grpc::ServiceConfig;
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{NamedService, UnaryService};
use tonic::transport::server::{Server, TcpIncoming};
use tonic::transport::{Channel, Uri};
use tonic::{Request, Response, Status};
use tower::{Layer, Service};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let channel = Channel::builder(start_server().await?).connect_lazy();

    // Four attempts, as in the example of gRPC's service configuration. Methods that may run twice are declared.
    let layer = RetryLayer::new(NamedPolicy::load("grpc")?.policy)
        .map_body(Body::new)
        .traced()
        .grpc(ServiceConfig::default().repeatable(["demo.Orders/Get"]));
    // With generated code: OrdersClient::new(layer.layer(channel)).
    let mut client = tonic::client::Grpc::new(layer.layer(channel));

    client.ready().await?;
    let path = PathAndQuery::from_static("/demo.Orders/Get");
    let request = Request::new(Bytes::from("order 7"));
    let response = client.unary(request, path, Raw).await?;

    if let Some(summary) = response.extensions().get::<Summary>() {
        for entry in summary.trace.iter().flat_map(relent::trace::Trace::entries) {
            let seen = entry.seen.map_or_else(String::new, |seen| seen.to_string());
            let wait = entry.wait().map_or_else(String::new, |wait| {
                format!(", again after {}", relent::policy::format_duration(wait))
            });
            println!("attempt {}: {seen}{wait}", entry.attempt);
        }
    }
    println!("{}", String::from_utf8_lossy(response.get_ref()));
    Ok(())
}

/// Serves on its own port until the program ends.
async fn start_server() -> Result<Uri, Box<dyn std::error::Error>> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let uri = format!("http://{}", listener.local_addr()?).parse()?;
    let router = Server::builder().add_service(Orders::default());
    tokio::spawn(router.serve_with_incoming(TcpIncoming::from(listener)));
    Ok(uri)
}

/// Unavailable for the first two calls.
#[derive(Clone, Default)]
struct Orders {
    calls: Arc<AtomicU32>,
}

impl UnaryService<Bytes> for Orders {
    type Response = Bytes;
    type Future = BoxFuture<'static, Result<Response<Bytes>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let answer = match self.calls.fetch_add(1, Ordering::Relaxed) {
            0 | 1 => {
                let mut status = Status::unavailable("restarting");
                let pushback = tonic::metadata::MetadataValue::from_static("150");
                let metadata = status.metadata_mut();
                metadata.insert("grpc-retry-pushback-ms", pushback);
                Err(status)
            }
            _ => Ok(Response::new(request.into_inner())),
        };
        ready(answer).boxed()
    }
}

// A real program generates the following from a .proto file.

impl NamedService for Orders {
    const NAME: &'static str = "demo.Orders";
}

impl Service<http::Request<Body>> for Orders {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let orders = self.clone();
        async move { Ok(tonic::server::Grpc::new(Raw).unary(orders, request).await) }.boxed()
    }
}

/// Passes messages through unchanged.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, message: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(message);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
