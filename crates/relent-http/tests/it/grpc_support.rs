//! A tonic server on a real socket that responds by script, and a tonic client for it. Messages are
//! plain bytes, so that no generated code is needed.
#![allow(unreachable_pub, reason = "a part of a test")]

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};

use bytes::{Buf, BufMut, Bytes};
use futures_util::future::{BoxFuture, FutureExt, ready};
use futures_util::stream::{self, BoxStream, StreamExt};
use http::HeaderMap;
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::server::{Grpc, NamedService, ServerStreamingService, StreamingService};
use tonic::transport::Channel;
use tonic::transport::server::{Server, TcpIncoming};
use tonic::{Request, Response, Status, Streaming};
use tower::Service;

/// Codec that passes messages unchanged.
#[derive(Clone, Copy, Default)]
pub struct Raw;

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

/// Scripted reaction of the server to a call.
#[derive(Clone, Debug)]
pub enum ScriptedAnswer {
    /// Sends these messages.
    Say(Vec<&'static str>),
    /// Sends this status immediately: trailers-only.
    Refuse(Status),
    /// Sends headers, these messages, and this status in the trailers.
    Break(Vec<&'static str>, Status),
    /// Never responds.
    Stall,
}

/// A call as it arrived.
#[derive(Clone, Debug)]
pub struct Seen {
    pub metadata: HeaderMap,
    pub message: Bytes,
}

impl Seen {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.metadata.get(name).map(|value| value.to_str().unwrap())
    }
}

/// A running server; it stops with the test.
#[derive(Clone)]
pub struct Scripted {
    answers: Arc<Vec<ScriptedAnswer>>,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Scripted {
    /// Each call gets the next answer; after the script has ended, the last one again.
    pub async fn answering(answers: impl IntoIterator<Item = ScriptedAnswer>) -> (Self, Channel) {
        let server = Self {
            answers: Arc::new(answers.into_iter().collect()),
            seen: Arc::default(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let router = Server::builder().add_service(server.clone());
        tokio::spawn(router.serve_with_incoming(TcpIncoming::from(listener)));
        (server, channel(address))
    }

    /// The calls so far.
    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap().clone()
    }

    /// How many calls there were.
    pub fn calls(&self) -> usize {
        self.seen.lock().unwrap().len()
    }
}

/// A channel that connects on first use.
pub fn channel(address: SocketAddr) -> Channel {
    Channel::from_shared(format!("http://{address}"))
        .unwrap()
        .connect_lazy()
}

impl NamedService for Scripted {
    const NAME: &'static str = "test.Echo";
}

impl Service<http::Request<Body>> for Scripted {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<'static, Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let script = self.clone();
        let mut grpc = Grpc::new(Raw);
        if request.uri().path() == "/test.Echo/Chat" {
            return async move { Ok(grpc.streaming(Echo, request).await) }.boxed();
        }
        async move { Ok(grpc.server_streaming(script, request).await) }.boxed()
    }
}

type Messages = BoxStream<'static, Result<Bytes, Status>>;

// On the wire, unary calls are the same with one message.
impl ServerStreamingService<Bytes> for Scripted {
    type Response = Bytes;
    type ResponseStream = Messages;
    type Future = BoxFuture<'static, Result<Response<Messages>, Status>>;

    fn call(&mut self, request: Request<Bytes>) -> Self::Future {
        let (metadata, _, message) = request.into_parts();
        let call = {
            let mut seen = self.seen.lock().unwrap();
            seen.push(Seen {
                metadata: metadata.into_headers(),
                message,
            });
            seen.len() - 1
        };
        let answer = self.answers[call.min(self.answers.len() - 1)].clone();
        let say = |messages: Vec<&'static str>| {
            stream::iter(messages.into_iter().map(|message| Ok(Bytes::from(message))))
        };
        match answer {
            ScriptedAnswer::Say(messages) => {
                ready(Ok(Response::new(say(messages).boxed()))).boxed()
            }
            ScriptedAnswer::Refuse(status) => ready(Err(status)).boxed(),
            ScriptedAnswer::Break(messages, status) => {
                let broken = say(messages).chain(stream::iter([Err(status)]));
                ready(Ok(Response::new(broken.boxed()))).boxed()
            }
            ScriptedAnswer::Stall => futures_util::future::pending().boxed(),
        }
    }
}

/// Responds immediately, and then repeats each message.
struct Echo;

impl StreamingService<Bytes> for Echo {
    type Response = Bytes;
    type ResponseStream = Messages;
    type Future = BoxFuture<'static, Result<Response<Messages>, Status>>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        ready(Ok(Response::new(request.into_inner().boxed()))).boxed()
    }
}
