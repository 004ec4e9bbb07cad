//! Bodies that can be sent again: the replay equals the original, memory stays bounded,
//! and the body of an ended attempt yields nothing.

use std::collections::VecDeque;
use std::io;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};

use bytes::Bytes;
use http::HeaderMap;
use http_body::{Body, Frame, SizeHint};
use http_body_util::{BodyExt, Empty, Full};
use proptest::prelude::*;
use relent_http::body::{ByType, Content, NotReplayable, Replay, ReplayBody, Superseded};

/// One step of a scripted body.
#[derive(Clone, Debug)]
enum Step {
    Data(Bytes),
    Wait,
    Trailers(HeaderMap),
    Fail,
}

/// A body that streams by script.
#[derive(Debug, Default)]
struct Script {
    steps: VecDeque<Step>,
    /// Reports its length in advance, and its end.
    sized: bool,
}

impl Script {
    fn of(steps: impl IntoIterator<Item = Step>) -> Self {
        let steps = steps.into_iter().collect();
        let sized = false;
        Self { steps, sized }
    }

    fn sized(mut self) -> Self {
        self.sized = true;
        self
    }
}

impl Body for Script {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        match self.steps.pop_front() {
            None => Poll::Ready(None),
            Some(Step::Data(data)) => Poll::Ready(Some(Ok(Frame::data(data)))),
            Some(Step::Wait) => Poll::Pending,
            Some(Step::Trailers(trailers)) => Poll::Ready(Some(Ok(Frame::trailers(trailers)))),
            Some(Step::Fail) => Poll::Ready(Some(Err(io::Error::other("the source failed")))),
        }
    }

    fn is_end_stream(&self) -> bool {
        self.sized && self.steps.is_empty()
    }

    fn size_hint(&self) -> SizeHint {
        if !self.sized {
            return SizeHint::default();
        }
        let lengths = self.steps.iter().map(|step| match step {
            Step::Data(data) => data.len() as u64,
            _ => 0,
        });
        SizeHint::with_exact(lengths.sum())
    }
}

fn data(text: &'static str) -> Step {
    Step::Data(Bytes::from_static(text.as_bytes()))
}

fn trailers() -> HeaderMap {
    let mut trailers = HeaderMap::new();
    trailers.insert("checksum", "12".parse().unwrap());
    trailers
}

fn streamed(body: Script) -> (Replay<Script>, ReplayBody<Script>) {
    Replay::new(body, &ByType, Replay::CAP)
}

fn again(replay: &mut Replay<Script>) -> ReplayBody<Script> {
    replay.take_back(false).unwrap();
    replay.again(&ByType).unwrap()
}

type PollOutcome<B> = Poll<Option<Result<Frame<<B as Body>::Data>, <B as Body>::Error>>>;

/// The result of the next poll.
fn next<B: Body + Unpin>(body: &mut B) -> PollOutcome<B> {
    Pin::new(body).poll_frame(&mut Context::from_waker(Waker::noop()))
}

type Got = (Vec<u8>, Option<HeaderMap>);

/// Polls up to `polls` times; `true` if the end was reached.
fn read<B>(body: &mut ReplayBody<B>, polls: usize, content: &mut Got) -> bool
where
    ReplayBody<B>: Body<Data = Bytes, Error = relent_http::BoxError> + Unpin,
{
    for _ in 0..polls {
        match next(body) {
            Poll::Pending => {}
            Poll::Ready(None) => return true,
            Poll::Ready(Some(Ok(frame))) => match frame.into_data() {
                Ok(data) => content.0.extend_from_slice(&data),
                Err(frame) => content.1 = frame.into_trailers().ok(),
            },
            Poll::Ready(Some(Err(error))) => panic!("{error}"),
        }
    }
    false
}

fn whole<B>(body: &mut ReplayBody<B>) -> Got
where
    ReplayBody<B>: Body<Data = Bytes, Error = relent_http::BoxError> + Unpin,
{
    let mut content = Got::default();
    assert!(read(body, 10_000, &mut content), "it has an end");
    content
}

fn error<B>(body: &mut ReplayBody<B>) -> relent_http::BoxError
where
    ReplayBody<B>: Body<Data = Bytes, Error = relent_http::BoxError> + Unpin,
{
    match next(body) {
        Poll::Ready(Some(Err(error))) => error,
        other => panic!("{:?}", other.map(|frame| frame.map(|frame| frame.is_ok()))),
    }
}

#[test]
fn a_body_and_its_trailers_are_replayed() {
    let steps = [
        data("ab"),
        Step::Wait,
        data("c"),
        Step::Trailers(trailers()),
    ];
    let (mut replay, mut first) = streamed(Script::of(steps));
    let expected = (b"abc".to_vec(), Some(trailers()));
    assert_eq!(whole(&mut first), expected);
    for _ in 0..3 {
        assert_eq!(whole(&mut again(&mut replay)), expected);
    }
}

#[test]
fn a_partly_sent_body_is_replayed_from_its_beginning() {
    let (mut replay, mut first) = streamed(Script::of([data("ab"), data("cd"), data("ef")]));
    read(&mut first, 2, &mut Got::default());
    drop(first);
    assert_eq!(whole(&mut again(&mut replay)).0, b"abcdef");
}

#[test]
fn an_earlier_body_fails_when_its_content_is_taken_back() {
    // A normal end would turn half a request into a complete one.
    let (mut replay, mut first) = streamed(Script::of([data("ab"), data("cd")]));
    read(&mut first, 1, &mut Got::default());
    let mut second = again(&mut replay);
    assert!(error(&mut first).is::<Superseded>());
    assert!(!first.is_end_stream());
    assert_eq!(whole(&mut second).0, b"abcd");

    let (mut replay, mut first) = Replay::new(Full::<Bytes>::from("ab"), &ByType, 0);
    replay.take_back(true).unwrap();
    assert!(error(&mut first).is::<Superseded>());
}

#[test]
fn taking_back_content_wakes_the_waiting_connection() {
    struct Count(AtomicUsize);
    impl Wake for Count {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let count = Arc::new(Count(AtomicUsize::new(0)));
    let waker = Waker::from(count.clone());
    let (mut replay, mut first) = streamed(Script::of([Step::Wait, data("ab")]));
    let polled = Pin::new(&mut first).poll_frame(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    replay.take_back(false).unwrap();
    assert_eq!(count.0.load(Ordering::Relaxed), 1);

    // The same for content that a function makes.
    let content = Content::made_by(|| Script::of([data("ab"), Step::Wait, data("c")]));
    let (mut replay, mut first) = Replay::new(content, &ByType, 0);
    assert!(next(&mut first).is_ready());
    let polled = Pin::new(&mut first).poll_frame(&mut Context::from_waker(&waker));
    assert!(polled.is_pending());
    replay.take_back(true).unwrap();
    assert_eq!(count.0.load(Ordering::Relaxed), 2);
    assert!(error(&mut first).is::<Superseded>());
}

#[test]
fn taking_back_content_during_a_read_loses_no_data() {
    // Clones of a streaming body share their source: no clone may miss data that another has read.
    for round in 0..200 {
        let text: Vec<u8> = (0..=255).collect();
        let steps = text
            .chunks(1)
            .map(|byte| Step::Data(Bytes::copy_from_slice(byte)));
        let (mut replay, mut first) = streamed(Script::of(steps));
        let (start, started) = std::sync::mpsc::channel();
        let (before, second) = std::thread::scope(|scope| {
            let connection = scope.spawn(move || {
                let mut before = Vec::new();
                start.send(()).unwrap();
                while let Poll::Ready(Some(Ok(frame))) = next(&mut first) {
                    before.extend_from_slice(frame.data_ref().unwrap());
                }
                before
            });
            started.recv().unwrap();
            for _ in 0..round {
                std::hint::spin_loop();
            }
            let second = whole(&mut again(&mut replay)).0;
            (connection.join().unwrap(), second)
        });
        assert_eq!(second, text);
        assert!(text.starts_with(&before));
    }
}

#[test]
fn a_body_over_the_cap_continues_and_is_not_replayed() {
    let script = Script::of([data("abc"), data("def"), data("ghi")]);
    let (mut replay, mut first) = Replay::new(script, &ByType, 5);
    assert_eq!(whole(&mut first).0, b"abcdefghi");
    assert_eq!(replay.take_back(false), Err(NotReplayable));
}

#[test]
fn a_body_of_exactly_the_cap_is_replayed() {
    let (mut replay, mut first) = Replay::new(Script::of([data("abc"), data("de")]), &ByType, 5);
    assert_eq!(whole(&mut first).0, b"abcde");
    assert_eq!(whole(&mut again(&mut replay)).0, b"abcde");
}

#[test]
fn a_body_that_exceeds_the_cap_in_a_later_attempt_continues() {
    let script = Script::of([data("abc"), data("def"), data("ghi")]);
    let (mut replay, mut first) = Replay::new(script, &ByType, 5);
    read(&mut first, 1, &mut Got::default());
    let mut second = again(&mut replay);
    assert_eq!(whole(&mut second).0, b"abcdefghi");
    assert_eq!(replay.take_back(false), Err(NotReplayable));
}

#[test]
fn an_unread_long_body_is_sent_again() {
    // Such as after a refused connection.
    let script = Script::of([data("abcdef"), data("ghi")]).sized();
    let (mut replay, first) = Replay::new(script, &ByType, 5);
    drop(first);
    let mut second = again(&mut replay);
    assert_eq!(second.size_hint().exact(), Some(9));
    assert_eq!(whole(&mut second).0, b"abcdefghi");
    assert_eq!(replay.take_back(false), Err(NotReplayable));
}

#[test]
fn known_content_is_replayed_at_any_size() {
    let long = Bytes::from(vec![7; 3 * Replay::CAP]);
    let (mut replay, mut first) = Replay::new(Full::new(long.clone()), &ByType, Replay::CAP);
    assert_eq!(whole(&mut first).0, long);
    replay.take_back(true).unwrap();
    let mut second = replay.again(&ByType).unwrap();
    assert_eq!(second.size_hint().exact(), Some(long.len() as u64));
    assert_eq!(whole(&mut second).0, long);
}

#[tokio::test]
async fn files_and_generated_bodies_restart_for_each_attempt() {
    let text = "0123456789".repeat(20_000);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), &text).unwrap();
    let made = {
        let text = text.clone();
        Content::made_by(move || Full::<Bytes>::from(text.clone()))
    };
    for content in [
        Content::file(file.path()).unwrap(),
        made,
        Content::from(text.clone()),
    ] {
        let (mut replay, mut body) = Replay::new(content, &ByType, 0);
        for _ in 0..3 {
            // Read in part, then taken back.
            let length = text.len() as u64;
            assert_eq!(body.size_hint().exact(), Some(length));
            body.frame().await.unwrap().unwrap();
            replay.take_back(true).unwrap();
            body = replay.again(&ByType).unwrap();
        }
        assert_eq!(body.collect().await.unwrap().to_bytes(), text);
    }
}

#[tokio::test]
async fn a_file_that_changed_fails_the_attempt() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "one").unwrap();
    let content = Content::file(file.path()).unwrap();
    std::fs::write(file.path(), "other").unwrap();
    let error = content.collect().await.unwrap_err().to_string();
    assert!(error.contains("changed since the first attempt"), "{error}");
    assert!(Content::file("/dev/zero").is_err());
}

#[test]
fn a_clone_of_content_starts_from_the_beginning() {
    let mut content = Content::from("ab");
    assert!(matches!(next(&mut content), Poll::Ready(Some(Ok(_)))));
    assert!(content.is_end_stream());
    assert_eq!(content.clone().size_hint().exact(), Some(2));
    assert!(Content::from("").is_end_stream());
}

#[test]
fn a_closure_can_make_content_known() {
    let made = |_: &Script| Some(Script::of([data("made anew")]));
    let (mut replay, mut first) = Replay::new(Script::of([data("x")]), &made, 0);
    assert_eq!(whole(&mut first).0, b"made anew");
    replay.take_back(true).unwrap();
    assert_eq!(whole(&mut replay.again(&made).unwrap()).0, b"made anew");
}

#[test]
fn a_request_without_a_body_stays_without_one() {
    let (mut replay, first) = Replay::new(Empty::<Bytes>::new(), &ByType, Replay::CAP);
    assert!(first.is_end_stream());
    assert_eq!(first.size_hint().exact(), Some(0));
    replay.take_back(true).unwrap();
    assert!(replay.again(&ByType).unwrap().is_end_stream());
}

#[test]
fn an_early_response_commits_a_streamed_body() {
    let (mut replay, mut first) = streamed(Script::of([data("ab"), Step::Wait, data("cd")]));
    read(&mut first, 2, &mut Got::default());
    assert!(!replay.is_whole());
    assert_eq!(replay.take_back(true), Err(NotReplayable));
    // The attempt still has the body.
    assert_eq!(whole(&mut first).0, b"cd");
}

#[test]
fn a_streamed_body_that_was_sent_to_its_end_is_replayed_after_a_response() {
    let (mut replay, mut first) = streamed(Script::of([data("ab"), data("cd")]));
    whole(&mut first);
    assert!(replay.is_whole());
    replay.take_back(true).unwrap();

    // A client that knows the length stops polling once it has that many bytes.
    let (mut replay, mut first) = streamed(Script::of([data("ab"), data("cd")]).sized());
    read(&mut first, 2, &mut Got::default());
    assert!(replay.is_whole());
    replay.take_back(true).unwrap();
}

#[test]
fn a_body_read_to_its_announced_length_is_complete() {
    // Hyper reads no further than a `Content-Length` that the caller has set.
    let (mut replay, mut first) = streamed(Script::of([data("ab"), data("cd")]));
    replay.announce(4);
    read(&mut first, 1, &mut Got::default());
    assert!(!replay.is_whole());
    read(&mut first, 1, &mut Got::default());
    assert!(replay.is_whole());
    replay.take_back(true).unwrap();
}

#[test]
fn known_content_reports_whether_it_was_sent_completely() {
    let (mut replay, mut first) = Replay::new(Full::<Bytes>::from("ab"), &ByType, 0);
    assert!(!replay.is_whole());
    whole(&mut first);
    assert!(replay.is_whole());
    replay.take_back(true).unwrap();
    assert!(!replay.is_whole());
}

#[test]
fn a_failed_body_passes_its_error_on_and_is_not_replayed() {
    let (mut replay, mut first) = streamed(Script::of([data("ab"), Step::Fail]));
    read(&mut first, 1, &mut Got::default());
    assert_eq!(error(&mut first).to_string(), "the source failed");
    assert!(!first.is_end_stream());
    assert_eq!(replay.take_back(false), Err(NotReplayable));
    // If polled again by mistake, it must not report a normal end.
    assert!(error(&mut first).is::<Superseded>());
}

#[test]
fn empty_frames_do_not_end_a_body_or_count_towards_the_cap() {
    let steps = [data(""), data("a"), data(""), data("b"), data("")];
    let (mut replay, mut first) = Replay::new(Script::of(steps), &ByType, 2);
    assert_eq!(whole(&mut first).0, b"ab");
    let mut second = again(&mut replay);
    let frames = std::iter::from_fn(|| match next(&mut second) {
        Poll::Ready(frame) => frame,
        Poll::Pending => None,
    });
    assert_eq!(frames.count(), 1);
}

#[test]
fn many_tiny_frames_are_kept_as_one() {
    let steps = std::iter::repeat_n(data("x"), 1000);
    let (mut replay, mut first) = streamed(Script::of(steps));
    whole(&mut first);
    let mut second = again(&mut replay);
    let Poll::Ready(Some(Ok(frame))) = next(&mut second) else {
        panic!("it is there at once")
    };
    assert_eq!(frame.data_ref().map(Bytes::len), Some(1000));
}

#[test]
fn a_kept_slice_does_not_keep_its_large_buffer_alive() {
    let large = Bytes::from(vec![1; 1 << 20]);
    let slice = large.slice(..10);
    let (_replay, mut first) = streamed(Script::of([Step::Data(slice), data("b")]));
    read(&mut first, 1, &mut Got::default());
    assert!(large.is_unique());
}

#[test]
fn the_last_body_continues_after_the_replay_is_dropped() {
    let (mut replay, mut first) = streamed(Script::of([data("ab"), data("cd"), data("ef")]));
    read(&mut first, 1, &mut Got::default());
    let mut second = again(&mut replay);
    drop(replay);
    assert_eq!(whole(&mut second).0, b"abcdef");
}

#[test]
fn a_replay_body_of_an_unsync_body_is_sync() {
    fn send_and_sync<T: Send + Sync>(_: &T) {}
    let body = http_body_util::combinators::UnsyncBoxBody::new(Full::<Bytes>::from("ab"));
    let (replay, first) = Replay::new(body, &ByType, Replay::CAP);
    send_and_sync(&first);
    drop((replay, first));
}

fn any_body() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => proptest::collection::vec(any::<u8>(), 0..40).prop_map(|data| Step::Data(data.into())),
        1 => Just(Step::Wait),
    ];
    let end = prop_oneof![Just(None), Just(Some(Step::Trailers(trailers())))];
    (proptest::collection::vec(step, 0..12), end).prop_map(|(mut steps, end)| {
        steps.extend(end);
        steps
    })
}

proptest! {
    /// For any chunks and any cuts, an attempt reads a prefix of the original, with the announced length, and at its
    /// end all of it. A replay is refused only if more than the cap was read, or if any data was read of a body
    /// whose declared length exceeds the cap.
    #[test]
    fn a_replayed_body_equals_the_original(
        steps in any_body(),
        sized in any::<bool>(),
        cuts in proptest::collection::vec(0_usize..20, 0..5),
        cap in 0_usize..300,
    ) {
        let mut original = Got::default();
        for step in &steps {
            match step {
                Step::Data(data) => original.0.extend_from_slice(data),
                Step::Trailers(trailers) => original.1 = Some(trailers.clone()),
                _ => {}
            }
        }
        let script = Script { steps: steps.into(), sized };
        let (mut replay, mut body) = Replay::new(script, &ByType, cap);
        let mut most = 0;
        for cut in cuts {
            let mut content = Got::default();
            if sized && !body.is_end_stream() {
                prop_assert_eq!(body.size_hint().exact(), Some(original.0.len() as u64));
            }
            read(&mut body, cut, &mut content);
            prop_assert!(original.0.starts_with(&content.0));
            most = most.max(content.0.len());
            let taken = replay.take_back(false);
            let room = if sized && original.0.len() > cap { 0 } else { cap };
            prop_assert_eq!(taken.is_ok(), most <= room, "{} bytes read", most);
            if taken.is_err() {
                return Ok(());
            }
            body = replay.again(&ByType).unwrap();
        }
        let content = whole(&mut body);
        prop_assert_eq!(content, original);
        prop_assert!(!sized || body.is_end_stream());
    }

    /// The size is exact at every step, and the end is not reported early.
    #[test]
    fn the_announced_size_matches_the_remaining_bytes(steps in any_body(), cut in 0_usize..20) {
        let script = Script { steps: steps.into(), sized: true };
        let (mut replay, mut first) = Replay::new(script, &ByType, 10_000);
        read(&mut first, cut, &mut Got::default());
        let mut body = pin!(again(&mut replay));
        loop {
            let (before, ended) = (body.size_hint().exact().unwrap(), body.is_end_stream());
            match next(&mut body) {
                Poll::Pending => {}
                Poll::Ready(None) => {
                    prop_assert_eq!(before, 0);
                    break;
                }
                Poll::Ready(Some(frame)) => {
                    prop_assert!(!ended);
                    let length = frame.unwrap().data_ref().map_or(0, Bytes::len) as u64;
                    prop_assert_eq!(body.size_hint().exact(), Some(before - length));
                }
            }
        }
    }
}

/// A body with a declared length that is too long, as in a forwarded request of a peer.
struct Declares(u64, Option<Bytes>);

impl Body for Declares {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        Poll::Ready(self.1.take().map(|data| Ok(Frame::data(data))))
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.0)
    }
}

#[test]
fn a_declared_length_allocates_nothing_for_any_replay_cap() {
    // The allocator would refuse most of these sizes, and the process would abort.
    for declared in [1 << 40, i64::MAX as u64, u64::MAX - 1, u64::MAX] {
        for cap in [usize::MAX, usize::MAX - 1, isize::MAX as usize, 1 << 46] {
            let body = Declares(declared, Some(Bytes::from_static(b"short")));
            let (mut replay, mut first) = Replay::new(body, &ByType, cap);
            replay.announce(declared);
            assert_eq!(whole(&mut first).0, b"short");
            if declared <= cap as u64 {
                replay.take_back(false).unwrap();
                assert_eq!(whole(&mut replay.again(&ByType).unwrap()).0, b"short");
            }
        }
    }
}

#[test]
fn a_kept_body_with_trailers_declares_no_new_length() {
    let steps = || [data("abc"), Step::Trailers(trailers())];
    // The length was not declared at the start: over HTTP/1.1 the body is sent in chunks again.
    let (mut replay, mut first) = streamed(Script::of(steps()));
    whole(&mut first);
    for body in [replay.beside(&ByType).unwrap(), again(&mut replay)] {
        let hint = body.size_hint();
        assert_eq!((hint.lower(), hint.upper()), (3, None));
        assert!(!body.is_end_stream());
    }
    // The length was declared: nothing changes.
    let (mut replay, mut first) = streamed(Script::of(steps()).sized());
    whole(&mut first);
    for body in [replay.beside(&ByType).unwrap(), again(&mut replay)] {
        assert_eq!(body.size_hint().exact(), Some(3));
    }
    // Without trailers the length can be declared from the second attempt on.
    let (mut replay, mut first) = streamed(Script::of([data("abc")]));
    whole(&mut first);
    for body in [replay.beside(&ByType).unwrap(), again(&mut replay)] {
        assert_eq!(body.size_hint().exact(), Some(3));
    }
}
