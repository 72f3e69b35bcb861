//! Graphs of a sweep over the number of callers, as SVG files.

use std::path::{Path, PathBuf};

use anyhow::Context;
use plotters::prelude::*;

use crate::Row;

/// The size of a graph, in pixels.
const SIZE: (u32, u32) = (720, 440);

/// Writes the graphs of a sweep into a directory, which is made if it is missing: `NAME-throughput.svg` with the
/// workflows per second, and `NAME-time.svg` with the seconds in all, both by the number of callers. Returns the files.
pub fn write_sweep(rows: &[Row], name: &str, directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    std::fs::create_dir_all(directory)
        .with_context(|| format!("the directory {} cannot be made", directory.display()))?;
    let mut files = Vec::new();
    for (suffix, label, value) in [
        ("throughput", "workflows per second", (|row: &Row| row.per_second) as fn(&Row) -> f64),
        ("time", "seconds", |row: &Row| row.seconds),
    ] {
        let points: Vec<(f64, f64)> =
            rows.iter().map(|row| (row.concurrency.unwrap_or(1) as f64, value(row))).collect();
        let file = directory.join(format!("{name}-{suffix}.svg"));
        draw(&file, name, label, points).with_context(|| format!("{} cannot be written", file.display()))?;
        files.push(file);
    }
    Ok(files)
}

fn draw(file: &Path, name: &str, label: &str, mut points: Vec<(f64, f64)>) -> anyhow::Result<()> {
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (first, last) = match (points.first(), points.last()) {
        (Some(first), Some(last)) => (first.0, last.0),
        _ => (1.0, 1.0),
    };
    let highest = points.iter().map(|point| point.1).fold(0.0, f64::max);
    let area = SVGBackend::new(file, SIZE).into_drawing_area();
    area.fill(&WHITE)?;
    let mut chart = ChartBuilder::on(&area)
        .caption(format!("{name}: {label} by callers"), ("sans-serif", 20))
        .margin(12)
        .x_label_area_size(40)
        .y_label_area_size(80)
        // the numbers of callers usually double from row to row
        .build_cartesian_2d((first * 0.9..last * 1.1).log_scale(), 0.0..highest.max(1e-9) * 1.1)?;
    chart
        .configure_mesh()
        .x_desc("callers")
        .y_desc(label)
        .x_label_formatter(&|callers| format!("{callers:.0}"))
        .draw()?;
    chart.draw_series(LineSeries::new(points.iter().copied(), &BLUE))?;
    chart.draw_series(points.iter().map(|&point| Circle::new(point, 4, BLUE.filled())))?;
    area.present()?;
    Ok(())
}
