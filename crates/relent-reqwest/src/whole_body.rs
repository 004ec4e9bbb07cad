//! Responses whose body is read within the attempts.

use std::io;
use std::pin::Pin;
use std::sync::Arc;

use bytes::Bytes;
use http::Response as Head;

use crate::client::Client;
use crate::error::Error;
use crate::request_template::Template;
use crate::response::Response;
use crate::resumable::Resumable;
use crate::retry_options::RetryOptions;
use crate::sink::Sink;

/// A body in memory, with the head of its first response.
#[derive(Default)]
struct WholeBody {
    head: Head<()>,
    body: Vec<u8>,
}

impl Sink for WholeBody {
    async fn start(&mut self, head: &Head<()>, _: Option<&Resumable>) -> io::Result<()> {
        self.no_content(head).await
    }

    async fn write(&mut self, bytes: Bytes) -> io::Result<()> {
        self.body.extend_from_slice(&bytes);
        Ok(())
    }

    async fn no_content(&mut self, head: &Head<()>) -> io::Result<()> {
        self.head = head.clone();
        self.body.clear();
        Ok(())
    }
}

/// The response of a call that has begun.
pub(crate) type Receiving = Pin<Box<dyn Future<Output = Result<Response, Error>> + Send>>;

/// [`receive`], as a pointer that only [`RequestBuilder::whole_body`](crate::RequestBuilder::whole_body) sets, so that
/// programs which never call it do not contain downloads (130 kB).
pub(crate) type ReceiveWhole = fn(Client, Arc<RetryOptions>, Template) -> Receiving;

/// Makes attempts until the whole body is in memory.
pub(crate) fn receive(client: Client, options: Arc<RetryOptions>, template: Template) -> Receiving {
    Box::pin(async move {
        let mut whole = WholeBody::default();
        let (_, summary) = client.receive(template, options, &mut whole).await?;
        // For a response in parts, the first head describes the whole.
        let response = whole.head.map(|()| whole.body);
        Ok(Response::new(response.into(), summary))
    })
}
