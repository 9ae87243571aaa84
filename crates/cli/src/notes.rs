//! What a pool reports, as it comes: on standard error, or to whom asks.

use std::cell::RefCell;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

use forebay_device::runtime::{MILLISECOND, Nanos, Runtime};
use forebay_engine::{Event, EventKind, Pool};

use crate::text::tell;

/// How often a pool is asked: soon enough for somebody who watches, and nothing to the pool, which
/// keeps more events than one look's worth.
const LOOK_INTERVAL: Nanos = 200 * MILLISECOND;

/// See the head of the file.
#[derive(Default)]
pub(crate) struct Notes {
    last: RefCell<Option<Event>>,
}

/// The part of `events` after `last`; all, if that is so old that it is not kept any more.
fn since<'a>(events: &'a [Event], last: Option<&Event>) -> &'a [Event] {
    let seen = events.iter().rposition(|event| Some(event) == last);
    &events[seen.map_or(0, |index| index + 1)..]
}

impl Notes {
    /// What has happened since the last call.
    pub(crate) fn news(&self, pool: &Pool) -> Vec<Event> {
        let events = pool.events();
        let mut last = self.last.borrow_mut();
        let news = since(&events, last.as_ref()).iter();
        let news = news.filter(|event| event.kind != EventKind::Opened).cloned().collect();
        *last = events.last().cloned();
        news
    }

    /// Tells what has happened since the last call.
    pub(crate) fn tell(&self, pool: &Pool) {
        for event in self.news(pool) {
            tell(format_args!("note: {}", event.what));
        }
    }

    /// Does `work`, and tells what happens meanwhile.
    pub(crate) async fn beside<T>(
        &self,
        runtime: &dyn Runtime,
        pool: &Pool,
        work: impl Future<Output = T>,
    ) -> T {
        let mut work = pin!(work);
        let mut looking = pin!(async {
            while runtime.sleep(LOOK_INTERVAL).await.result.is_ok() {
                self.tell(pool);
            }
        });
        let mut is_looking = true;
        let result = poll_fn(|context| {
            if let Poll::Ready(result) = work.as_mut().poll(context) {
                return Poll::Ready(result);
            }
            is_looking = is_looking && looking.as_mut().poll(context).is_pending();
            Poll::Pending
        })
        .await;
        self.tell(pool);
        result
    }
}

#[cfg(test)]
mod tests {
    use forebay_engine::Subject;

    use super::*;

    #[test]
    fn an_event_is_told_once_also_when_older_ones_are_dropped() {
        let event = |at: Nanos| Event {
            at,
            kind: EventKind::CopiesRestored,
            subject: Subject::Pool,
            what: format!("event {at}"),
        };
        let events: Vec<_> = (10..20).map(event).collect();
        assert_eq!(since(&events, None), events);
        assert_eq!(since(&events, Some(&event(14))), &events[5..]);
        assert!(since(&events, Some(&event(19))).is_empty());
        assert_eq!(since(&events, Some(&event(3))), events, "its place is gone");
    }
}
