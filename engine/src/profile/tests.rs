use super::*;

fn cost(weight_bytes: u64) -> Cost {
    Cost { rows: 1, weight_bytes, kv_bytes: 20, activation_bytes: 3, f32_operations: 50, int8_operations: 600 }
}

/// Two passes of two operators, each with a region in which worker 0 takes 3 items and worker 1 takes 4; a third worker
/// never joins.
fn recorded(operator_spans_max: usize, worker_spans_max: usize) -> Profile {
    let recorder = Recorder::with_room(3, operator_spans_max, worker_spans_max);
    for (pass, tokens) in [7, 1].into_iter().enumerate() {
        recorder.begin_pass(tokens);
        for (operator, layer) in [(Operator::Qkv, Some(pass)), (Operator::Head, None)] {
            recorder.mark(operator, layer, cost(1000));
            let stopwatch = recorder.open_region();
            stopwatch.chunk(0, 1, || ());
            stopwatch.chunk(1, 4, std::thread::yield_now);
            stopwatch.chunk(0, 2, || ());
            recorder.close_region();
        }
        recorder.rest();
    }
    recorder.finish()
}

#[test]
fn all_time_of_all_threads_is_booked_as_work_or_as_a_kind_of_waiting() {
    let profile = recorded(100, 100);
    for phase in Phase::ALL {
        for operator in [Operator::Qkv, Operator::Head] {
            let total = profile.total(phase, operator);
            assert_eq!(total.busy_ns + total.synchronisation_ns + total.alone_ns, 3 * total.wall_ns);
            assert_eq!((total.calls, total.cost), (1, cost(1000)));
        }
        assert_eq!(profile.total(phase, Operator::Down).calls, 0);
        let busy_ns = [Operator::Qkv, Operator::Head].map(|o| profile.total(phase, o).busy_ns).iter().sum::<u64>();
        assert_eq!(profile.worker_busy_ns(phase).sum::<u64>(), busy_ns);
        assert_eq!(profile.worker_busy_ns(phase).last(), Some(0));
    }
    assert_eq!((profile.passes(Phase::Prefill), profile.passes(Phase::Decode)), ((1, 7), (1, 1)));
}

#[test]
fn spans_follow_each_other_and_lie_inside_their_operator() {
    let profile = recorded(100, 100);
    assert_eq!((profile.operators.len(), profile.dropped_events), (4, 0));
    let end = |start: u64, duration: u64| start + duration;
    for pair in profile.operators.windows(2) {
        assert!(end(pair[0].start_ns, pair[0].duration_ns) <= pair[1].start_ns, "{pair:?}");
    }
    for (worker, items) in [(0, Some(3)), (1, Some(4)), (2, None)] {
        let spans = &profile.workers[worker];
        for pair in spans.windows(2) {
            assert!(end(pair[0].start_ns, pair[0].duration_ns) <= pair[1].start_ns, "worker {worker}: {pair:?}");
        }
        for (span, operator) in spans.iter().filter(|s| s.items == items).zip(&profile.operators) {
            assert_eq!((span.operator, span.layer), (operator.operator, operator.layer));
            assert!(span.start_ns >= operator.start_ns);
            assert!(end(span.start_ns, span.duration_ns) <= end(operator.start_ns, operator.duration_ns));
        }
        let worked = spans.iter().filter(|s| s.items.is_some()).count();
        assert_eq!(worked, if worker < 2 { 4 } else { 0 });
    }
    // who never joined has waited all the time
    let waited: u64 = profile.workers[2].iter().map(|s| s.duration_ns).sum();
    assert!(waited > 0 && profile.workers[2].len() <= 4);
}

#[test]
fn full_buffers_drop_events_and_count_them_and_totals_go_on() {
    let cut = recorded(3, 2);
    assert_eq!((cut.operators.len(), cut.workers[0].len(), cut.workers[1].len()), (3, 2, 2));
    // of four operators one is missing, and of the four times that either worker worked two at least; how many waits are
    // missing too differs from run to run, since those of no length are no events
    assert!(cut.dropped_events > 2 * 2, "{}", cut.dropped_events);
    assert_eq!(cut.total(Phase::Decode, Operator::Head).calls, 1);
    let mut out = Vec::new();
    let dropped = cut.dropped_events;
    let text = table("cut", &cut, None);
    write_trace(&mut out, &[("cut".to_owned(), cut)]).unwrap();
    let trace: serde_json::Value = serde_json::from_slice(&out).unwrap();
    assert_eq!(trace["otherData"]["dropped_events"], dropped);
    assert!(text.contains(&format!("{dropped} events dropped")), "{text}");
}

#[test]
fn the_roofline_part_is_the_time_that_the_nearer_ceiling_allows() {
    let mut profile = recorded(100, 100);
    let total = &mut profile.totals[Phase::Decode as usize][Operator::Qkv as usize];
    // 1023 bytes at 10 GB/s take 102.3 ns, 600 operations at 12 GOP/s and 50 at 1 GFLOP/s take 100
    (total.wall_ns, total.cost) = (1023, cost(1000));
    let mut ceilings = Ceilings { read_gb_per_s: 10.0, f32_gflop_per_s: 1.0, int8_gop_per_s: 12.0 };
    let qkv = |ceilings| rows(&profile, Phase::Decode, Some(&ceilings))[0].clone();
    let row = qkv(ceilings);
    assert_eq!((row.name, row.bytes, row.gb_per_s), ("qkv", 1023, 1.0));
    let call = profile.operators.iter().find(|s| s.phase == Phase::Decode && s.operator == Operator::Qkv).unwrap();
    assert_eq!(row.median_us, Some(call.duration_ns as f64 / 1e3));
    assert!((row.of_roofline.unwrap().0 - 0.1).abs() < 1e-12, "{row:?}");
    ceilings.int8_gop_per_s = 6.0;
    assert!((qkv(ceilings).of_roofline.unwrap().0 - 150.0 / 1023.0).abs() < 1e-12);
}
