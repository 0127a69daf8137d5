//! Made device trees: small builders, and devices put together from them with the oddities that real ones have.

use super::{Tree, probe};
use crate::protocol::Fingerprint;
use std::path::Path;

/// A folder that looks like the root of a device.
pub(crate) struct Made {
    folder: tempfile::TempDir,
}

impl Made {
    pub(crate) fn new() -> Self {
        Self { folder: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn root(&self) -> &Path {
        self.folder.path()
    }

    /// A reader of it, whose count of files begins at 0.
    pub(crate) fn tree(&self) -> Tree {
        Tree::new(self.root())
    }

    pub(crate) fn probe(&self) -> Fingerprint {
        probe(&self.tree())
    }

    pub(crate) fn file(self, path: &str, text: impl AsRef<[u8]>) -> Self {
        let path = self.root().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        self
    }

    /// A core; without a clock it has no cpufreq folder, as when it is offline.
    pub(crate) fn core(self, number: u32, capacity: Option<u32>, clock_khz: Option<u64>, related: &str) -> Self {
        let cpu = format!("sys/devices/system/cpu/cpu{number}");
        std::fs::create_dir_all(self.root().join(&cpu)).unwrap();
        let mut made = self;
        if let Some(capacity) = capacity {
            made = made.file(&format!("{cpu}/cpu_capacity"), format!("{capacity}\n"));
        }
        if let Some(clock) = clock_khz {
            made = made
                .file(&format!("{cpu}/cpufreq/cpuinfo_max_freq"), format!("{clock}\n"))
                .file(&format!("{cpu}/cpufreq/scaling_governor"), "schedutil\n")
                .file(&format!("{cpu}/cpufreq/related_cpus"), format!("{related}\n"));
        }
        made
    }

    /// A cluster of cores that share a clock; `first` and `last` are both of it.
    pub(crate) fn cluster(self, (first, last): (u32, u32), capacity: Option<u32>, clock_khz: u64) -> Self {
        let related = format!("{first}-{last}");
        (first..=last)
            .fold(self, |made, core| made.core(core, capacity, Some(clock_khz), &related))
            .clock(first, clock_khz)
    }

    /// What a core's clock is now.
    pub(crate) fn clock(self, core: u32, clock_khz: u64) -> Self {
        self.file(&format!("sys/devices/system/cpu/cpu{core}/cpufreq/scaling_cur_freq"), format!("{clock_khz}\n"))
    }

    /// Time in units of 10 ms that a core's cluster has spent at each clock.
    pub(crate) fn times(self, core: u32, times: &[(u64, u64)]) -> Self {
        let text: String = times.iter().map(|(khz, time)| format!("{khz} {time}\n")).collect();
        self.file(&format!("sys/devices/system/cpu/cpu{core}/cpufreq/stats/time_in_state"), text)
    }

    pub(crate) fn zone(self, number: u32, kind: &str, temp: &str) -> Self {
        let folder = format!("sys/class/thermal/thermal_zone{number}");
        self.file(&format!("{folder}/type"), kind).file(&format!("{folder}/temp"), temp)
    }

    /// A zone whose `temp` answers with an error instead of a figure.
    pub(crate) fn dead_zone(self, number: u32, kind: &str) -> Self {
        let folder = format!("sys/class/thermal/thermal_zone{number}");
        std::fs::create_dir_all(self.root().join(&folder).join("temp")).unwrap();
        self.file(&format!("{folder}/type"), kind)
    }

    pub(crate) fn cooling(self, number: u32, kind: &str, state: i64, state_max: u64) -> Self {
        let folder = format!("sys/class/thermal/cooling_device{number}");
        self.file(&format!("{folder}/type"), format!("{kind}\n"))
            .file(&format!("{folder}/cur_state"), format!("{state}\n"))
            .file(&format!("{folder}/max_state"), format!("{state_max}\n"))
    }

    /// The device's battery, with these files besides its type and a charge of 87 %.
    pub(crate) fn battery(self, files: &[(&str, &str)]) -> Self {
        let folder = "sys/class/power_supply/battery";
        let made = self.file(&format!("{folder}/type"), "Battery\n").file(&format!("{folder}/capacity"), "87\n");
        files.iter().fold(made, |made, (file, text)| made.file(&format!("{folder}/{file}"), text))
    }

    pub(crate) fn hwmon(self, number: u32, name: &str, files: &[(&str, &str)]) -> Self {
        let folder = format!("sys/class/hwmon/hwmon{number}");
        let made = self.file(&format!("{folder}/name"), name);
        files.iter().fold(made, |made, (file, text)| made.file(&format!("{folder}/{file}"), text))
    }

    fn cores(self, present: &str, online: &str) -> Self {
        self.file("sys/devices/system/cpu/present", present).file("sys/devices/system/cpu/online", online)
    }

    fn pressure(self) -> Self {
        ["memory", "cpu", "io"].iter().fold(self, |made, resource| {
            let text =
                "some avg10=1.50 avg60=0.50 avg300=0.10 total=1\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n";
            made.file(&format!("proc/pressure/{resource}"), text)
        })
    }

    fn memory(self, total_kb: u64) -> Self {
        let text = format!("MemTotal: {total_kb} kB\nMemAvailable: {} kB\n", total_kb / 2);
        self.file("proc/meminfo", text + "SwapTotal: 2000 kB\nSwapFree: 500 kB\n")
    }

    /// Three clusters, zones with odd names, a sensor stuck above 135 C, an offline core without a cpufreq folder.
    pub(crate) fn pixel_like() -> Self {
        let made = Self::new().cores("0-8\n", "0-3,5-8\n").memory(11_534_336).pressure();
        let made = made.cluster((0, 3), Some(160), 1_704_000).times(0, &[(300_000, 100), (1_704_000, 100)]);
        let made = made.core(4, Some(498), None, "").cluster((5, 7), Some(498), 2_367_000);
        let made = made.file("sys/devices/system/cpu/cpu5/cpufreq/related_cpus", "4-7\n");
        let made = made.times(5, &[(402_000, 0), (2_367_000, 50)]).cluster((8, 8), Some(1024), 2_914_000);
        made.times(8, &[(500_000, 900), (2_914_000, 100)])
            .zone(0, "BIG\n", "48200\n")
            .zone(1, "MID\n", "46100\n")
            .zone(2, "LITTLE\n", "44000\n")
            .zone(3, "disp_therm\n", "138000\n")
            .zone(4, "neutral_therm\n", "33\n")
            .zone(5, "battery\n", "30100\n")
            .zone(6, "soc\n", "87\n")
            .dead_zone(7, "usbc-therm-adc\n")
            .cooling(0, "thermal-cpufreq-0", 0, 11)
            .cooling(1, "thermal-cpufreq-2", 0, 15)
            .cooling(2, "panel0-backlight", 3, 10)
            .cooling(3, "fcc", 2, 20)
            .battery(&[
                ("status", "Discharging\n"),
                ("temp", "301\n"),
                ("voltage_now", "3950000\n"),
                ("current_now", "-412000\n"),
            ])
            .file("sys/class/power_supply/pen/type", "Battery\n")
            .file("sys/class/power_supply/pen/scope", "Device\n")
            .file("sys/class/power_supply/pen/capacity", "12\n")
    }

    /// Current in mA that is above 0 while the battery discharges; zones that measure the battery's current and voltage.
    pub(crate) fn snapdragon_like() -> Self {
        let made = Self::new().cores("0-7", "0-7").memory(7_600_000).pressure();
        let made = made.cluster((0, 3), Some(379), 1_785_600).cluster((4, 6), Some(871), 2_419_200);
        made.cluster((7, 7), Some(1024), 2_841_600)
            .zone(0, "cpu-0-0-usr\n", "51500\n")
            .zone(1, "cpuss-0-usr\n", "52100\n")
            .zone(2, "ibat-lvl0\n", "412\n")
            .zone(3, "vbat\n", "3950\n")
            .zone(4, "pm8250-bcl-lvl0\n", "0\n")
            .zone(5, "xo-therm-adc\n", "-274000\n")
            .cooling(0, "cpu-cluster2", 2, 20)
            .battery(&[
                ("status", "Discharging\n"),
                ("temp", "325\n"),
                ("voltage_now", "3950000\n"),
                ("current_now", "412\n"),
            ])
    }

    /// Four small and two pairs of big cores, and a memory clock that hides in devfreq.
    pub(crate) fn rk3588_like() -> Self {
        let made = Self::new().cores("0-7", "0-7").memory(16_000_000);
        let made = made.cluster((0, 3), Some(530), 1_800_000).cluster((4, 5), Some(1024), 2_400_000);
        made.cluster((6, 7), Some(1024), 2_352_000)
            .file("sys/firmware/devicetree/base/compatible", "radxa,rock-5b\0rockchip,rk3588")
            .zone(0, "soc-thermal\n", "42538\n")
            .zone(1, "bigcore0-thermal\n", "43461\n")
            .cooling(0, "pwm-fan", 1, 4)
            .file("sys/class/devfreq/dmc/governor", "dmc_ondemand\n")
            .file("sys/class/devfreq/dmc/max_freq", "2112000000\n")
            .file("sys/class/devfreq/fb000000.gpu/governor", "simple_ondemand\n")
    }

    /// Rails behind an INA3221, of which one feeds the others; a power mode in a file of its own.
    pub(crate) fn jetson_like() -> Self {
        let made = Self::new().cores("0-5", "0-5").memory(7_800_000).cluster((0, 5), None, 1_510_400);
        made.zone(0, "CPU-therm\n", "47500\n")
            .zone(1, "PMIC-Die\n", "100000\n")
            .dead_zone(2, "CV0-therm\n")
            .file("var/lib/nvpmodel/status", "pmode:0002\n")
            .hwmon(
                3,
                "ina3221\n",
                &[
                    ("in1_label", "VDD_IN\n"),
                    ("in1_input", "5048\n"),
                    ("curr1_input", "1200\n"),
                    ("in2_label", "VDD_CPU_GPU_CV\n"),
                    ("in2_input", "5040\n"),
                    ("curr2_input", "400\n"),
                    ("in3_label", "VDD_SOC\n"),
                    ("in3_input", "5040\n"),
                    ("curr3_input", "300\n"),
                ],
            )
    }

    /// One cluster, one zone, and firmware that says how it was throttled.
    pub(crate) fn pi_like() -> Self {
        let made = Self::new().cores("0-3", "0-3").memory(8_000_000).cluster((0, 3), None, 2_400_000);
        made.zone(0, "cpu-thermal\n", "61700\n")
            .file("sys/devices/platform/soc/soc:firmware/get_throttled", "50005\n")
            .cooling(0, "pwm-fan", 2, 4)
    }

    /// Cores and memory, and nothing else.
    pub(crate) fn bare_vm() -> Self {
        let made = Self::new().cores("0-1", "0-1").memory(4_000_000);
        made.core(0, None, None, "").core(1, None, None, "").cooling(0, "Processor", 0, 0)
    }
}
