//! [`Renewals`]: the worker's loop that renews its registration.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use tokio::time::Instant;

use super::heartbeats::is_idle_client;
use crate::clock::time_since_boot;
use crate::runtime::inner::EngineInner;

/// The interval between two renewals.
pub(super) const RENEWAL_INTERVAL: Duration = Duration::from_secs(1);

/// The interval between two renewals of a client without waiters, whose lease is a day.
pub(super) const IDLE_CLIENT_INTERVAL: Duration = Duration::from_hours(1);

/// The state of the renewal loop under one registration.
pub(super) struct Renewals {
    engine: Arc<EngineInner>,
    /// Whether the last renewal failed.
    is_failing: bool,
    renewed_at: Option<Instant>,
}

impl Renewals {
    pub(super) fn new(engine: Arc<EngineInner>) -> Self {
        Self { engine, is_failing: false, renewed_at: None }
    }

    /// Renews the registration once a second. Never returns.
    pub(super) async fn run(&mut self) {
        let engine = self.engine.clone();
        loop {
            let every = if is_idle_client(&engine) { IDLE_CLIENT_INTERVAL } else { RENEWAL_INTERVAL };
            let regular = self.renewed_at.map_or_else(Instant::now, |at| at + every);
            let extra = *engine.wakeups.extra_renewal_at.lock();
            let next = extra.map_or(regular, |at| at.min(regular));
            if next <= Instant::now() {
                self.renew().await;
                continue;
            }
            tokio::select! {
                () = engine.wakeups.renewal.notified() => {}
                () = tokio::time::sleep_until(next) => {}
            }
        }
    }

    /// Renews the registration and applies the reply.
    async fn renew(&mut self) {
        let engine = self.engine.clone();
        let (sent_at, sent_since_boot) = (Instant::now(), time_since_boot());
        self.renewed_at = Some(sent_at);
        *engine.wakeups.extra_renewal_at.lock() = None;
        if engine.is_poisoned() {
            return;
        }
        let registration = engine.registration();
        let renewal = match engine.store.renew(registration.worker, registration.epoch).await {
            Ok(renewal) => renewal,
            Err(error) => {
                let Some(error) = engine.stop_if_fatal(error) else { return };
                if !std::mem::replace(&mut self.is_failing, true) {
                    tracing::warn!(%error, "cannot renew the registration; trying again");
                }
                return;
            }
        };
        if std::mem::take(&mut self.is_failing) {
            tracing::info!("the registration is renewed again");
        }
        engine.store_clock.correct(sent_at, renewal.now);
        if renewal.is_fenced {
            engine.wakeups.mark_fenced();
            return;
        }
        // requests may have come while the lease was not held: a heartbeat asks for them before bodies begin
        if engine.lease.renew(sent_since_boot) || renewal.has_requests {
            engine.wakeups.request_heartbeat();
        }
        engine.wakeups.receives_hints.store(renewal.receives_hints, SeqCst);
        if let Some(versions) = renewal.newer_schema {
            engine.drain_outdated(versions);
        }
        engine.wakeups.maintenance.notify_one();
    }
}
