//! [`Shift`]: a busy queue with its workers and its operator, and what is seen of it again and again.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use tokio::time::Instant;

use crate::chaos::queue_snapshot::Census;
use crate::chaos::deployment::Site;
use crate::chaos::operator::Operator;
use crate::chaos::worker_process::{Fate, Heard, Terms};

/// So many wait, if the workers can start them as fast as they run them.
pub const BACKLOG: u64 = 2_500;
/// A worker is asked for so many starts at a time.
pub const FEED: u32 = 500;
/// The queue stands still if nothing ends for so long, pauses not counted: a lease, the search for what a takeover has
/// left behind, and more than either for a busy machine.
pub const STALL: Duration = Duration::from_secs(30);
/// The pace is that of a span of this length.
const SPAN: Duration = Duration::from_secs(1);
/// A kill comes at most so many milliseconds after a change was asked for.
const KILLED_WITHIN: u64 = 40;

/// What workers have told.
#[derive(Default)]
pub struct Ears {
    /// Executions whose start was acknowledged.
    pub started: HashSet<String>,
    /// How often the body of each execution has begun.
    pub bodies: HashMap<String, u32>,
    /// Workers that have done what they were asked for last.
    answered: HashSet<usize>,
}

impl Ears {
    fn hear(&mut self, heard: &Heard) {
        let line = heard.line.as_deref().unwrap_or_default();
        match line.split(' ').collect::<Vec<_>>().as_slice() {
            ["note", "started", keys @ .., "."] => self.started.extend(keys.iter().map(|key| plain(key))),
            ["note", "fed" | "closed" | "open"] => {
                self.answered.insert(heard.number);
            }
            ["body", _, execution, ..] => *self.bodies.entry(plain(execution)).or_default() += 1,
            _ => {}
        }
    }
}

/// Returns a key as a census has it.
pub fn plain(key: &str) -> String {
    key.replace('-', "").to_lowercase()
}

fn lock(ears: &Mutex<Ears>) -> MutexGuard<'_, Ears> {
    ears.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Figures for the report.
#[derive(Default)]
pub struct Figures {
    /// How long the workers ran what they could, and how many executions ended meanwhile.
    pub busy: (Duration, u64),
    /// Most that ended in a second, most that ran, and most that waited.
    pub peaks: [u64; 3],
    /// How often the database was looked at.
    pub looks: u64,
    /// How many workers were killed, and how many have left with work under way.
    pub kills: u64,
    /// The same of workers that were asked to leave.
    pub leaves: u64,
}

/// A database with its workers, an operator, and what was seen last.
pub struct Shift {
    /// The database.
    pub site: Site,
    /// Who changes the queue.
    pub operator: Operator,
    /// For the report.
    pub figures: Figures,
    /// Nothing more is started.
    pub is_closing: bool,
    /// Nothing has ended for long.
    pub is_stalled: bool,
    /// What was seen last.
    pub last: Option<Census>,
    ears: Arc<Mutex<Ears>>,
    /// What had ended at the last look, how long nothing has ended in the time that counts for a stall, and when that was
    /// counted last.
    progress: (u64, Duration, Instant),
    /// What had ended at the beginning of a span, and when that was.
    span: (u64, Instant),
}

impl Shift {
    /// A shift without workers.
    pub fn new(mut site: Site, operator: Operator) -> Self {
        let ears = Arc::new(Mutex::new(Ears::default()));
        let listening = ears.clone();
        site.listener = Some(Box::new(move |heard| lock(&listening).hear(heard)));
        let now = Instant::now();
        Self {
            site,
            operator,
            figures: Figures::default(),
            is_closing: false,
            is_stalled: false,
            last: None,
            ears,
            progress: (0, Duration::ZERO, now),
            span: (0, now),
        }
    }

    /// Starts so many workers, and waits until all are registered.
    pub async fn hire(&mut self, count: usize) {
        self.hire_without_waiting(count);
        let pids = self.pids();
        let is_so = |census: &Census| census.of_processes(&pids).len() == pids.len();
        self.until("registrations of all workers", is_so).await;
    }

    fn hire_without_waiting(&mut self, count: usize) {
        // until one is asked for something, everything is answered
        lock(&self.ears).answered.extend(self.site.hire_some(count, &Terms::default()));
    }

    /// Returns the processes of the workers.
    pub fn pids(&self) -> Vec<i64> {
        self.site.working().into_iter().map(|number| self.site.hands[number].pid()).collect()
    }

    /// Looks, and compares what is seen with what was seen before; `None` while the database cannot be asked.
    pub async fn look(&mut self) -> Option<Census> {
        let census = Census::take(&mut self.site).await?;
        let mut wrong = census.slots_gone_wrong();
        if let Some(before) = &self.last {
            wrong.extend(census.gone_wrong_since(before, &self.operator.rows));
        }
        wrong.append(&mut self.operator.violations);
        self.site.told.violations.extend(wrong.into_iter().map(|it| format!("{it}; {census}")));
        let (ended, began) = self.span;
        let Figures { peaks: [most_ended, most_running, most_waiting], looks, .. } = &mut self.figures;
        *looks += 1;
        *most_running = (*most_running).max(census.running.len() as u64);
        *most_waiting = (*most_waiting).max(census.waiting());
        if began.elapsed() >= SPAN {
            let pace = (census.ended() - ended) as f64 / began.elapsed().as_secs_f64();
            *most_ended = (*most_ended).max(pace as u64);
            self.span = (census.ended(), Instant::now());
        }
        self.last = Some(census.clone());
        Some(census)
    }

    /// Looks until it is so; a violation if that takes as long as a stall.
    pub async fn until(&mut self, what: &str, is_so: impl Fn(&Census) -> bool) -> Census {
        let began = Instant::now();
        loop {
            let census = match self.look().await {
                Some(census) if is_so(&census) => return census,
                census => census.or_else(|| self.last.clone()).unwrap_or_default(),
            };
            if began.elapsed() > STALL {
                self.site.told.violations.push(format!("waited {STALL:?} in vain for {what}: {census}"));
                return census;
            }
            self.site.hear_for(Duration::from_millis(20)).await;
        }
    }

    /// Looks now.
    pub async fn now(&mut self) -> Census {
        self.until("an answer of the database", |_| true).await
    }

    /// Listens for so long, looks, keeps the workers busy, and sees whether something ends.
    pub async fn listen(&mut self, time: Duration) {
        self.site.hear_for(time).await;
        let Some(census) = self.look().await else { return };
        if census.waiting() < BACKLOG && !self.is_closing {
            for number in self.site.working() {
                if lock(&self.ears).answered.remove(&number) {
                    self.site.hands[number].ask(&format!("feed {FEED}"));
                }
            }
        }
        self.watch_progress(&census);
    }

    /// Notes a stall: nothing has ended for long, although the queue was not paused and something waited or ran.
    fn watch_progress(&mut self, census: &Census) {
        let (ended, mut stuck, at) = self.progress;
        self.figures.busy.0 += at.elapsed();
        self.figures.busy.1 += census.ended() - ended;
        if census.ended() > ended || census.waiting() + census.running.len() as u64 == 0 {
            stuck = Duration::ZERO;
        } else if !census.is_paused {
            stuck += at.elapsed();
        }
        self.progress = (census.ended(), stuck, Instant::now());
        if stuck > STALL && !self.is_stalled {
            self.is_stalled = true;
            self.site.told.violations.push(format!("nothing has ended for {stuck:?}: {census}"));
        }
    }

    /// Ends a quiet point, whose time counts for no stall and no pace.
    pub fn go_on(&mut self, census: &Census) {
        self.progress = (census.ended(), Duration::ZERO, Instant::now());
        self.span = (census.ended(), Instant::now());
    }

    /// Makes a change, and meanwhile kills a worker, all of them, or asks one to leave. As many are hired. Returns how many
    /// were killed.
    pub async fn act_and_kill(&mut self, rng: &mut Rng) -> u64 {
        let working = self.site.working();
        let chosen = working[rng.usize(0..working.len())];
        if rng.u8(0..6) == 0 {
            self.figures.leaves += 1;
            self.site.hands[chosen].ask("leave");
            self.operator.act().await;
            self.site.hear_until("a worker that leaves", |site| site.hands[chosen].fate == Fate::Left).await;
            self.hire(1).await;
            return 0;
        }
        let all = rng.u8(0..5) == 0;
        let chosen: Vec<usize> = working.into_iter().filter(|number| all || *number == chosen).collect();
        let (operator, site) = (&mut self.operator, &mut self.site);
        let kill = async {
            site.hear_for(Duration::from_millis(rng.u64(0..KILLED_WITHIN))).await;
            for number in &chosen {
                site.hands[*number].kill();
            }
        };
        tokio::join!(operator.act(), kill);
        self.figures.kills += chosen.len() as u64;
        self.hire_without_waiting(chosen.len());
        chosen.len() as u64
    }

    /// Kills these workers.
    pub fn kill(&mut self, numbers: &[usize]) {
        for number in numbers {
            self.site.hands[*number].kill();
        }
        self.figures.kills += numbers.len() as u64;
    }

    /// Waits until all workers have done what they were asked for.
    pub async fn all_answered(&mut self) {
        let ears = self.ears.clone();
        let has_answered = move |number: &usize| lock(&ears).answered.contains(number);
        let is_so = |site: &Site| site.working().iter().all(&has_answered);
        self.site.hear_until("answers of all workers", is_so).await;
    }

    /// Asks all workers for something, and waits until they have done it.
    pub async fn ask_all(&mut self, what: &str) {
        self.all_answered().await;
        for number in self.site.working() {
            lock(&self.ears).answered.remove(&number);
            self.site.hands[number].ask(what);
        }
        self.all_answered().await;
    }

    /// Returns what the workers have told, and forgets it.
    pub fn take_told(&mut self) -> Ears {
        std::mem::take(&mut *lock(&self.ears))
    }
}
