package cuda

import (
	"testing"
	"time"
)

// A machine without a GPU has no devices, with or without the tag, and only calls that need a GPU fail.
func TestDevices(t *testing.T) {
	devices, err := Devices()
	if err != nil {
		t.Fatal(err)
	}
	if len(devices) == 0 && Required() {
		t.Error("no GPU, and MGRPO_REQUIRE_GPU is set")
	}
	for i, d := range devices {
		t.Log(d)
		if d.Index != i || d.Name == "" || d.Memory <= 0 || d.Major <= 0 {
			t.Errorf("device %d is %+v", i, d)
		}
		m, err := MemoryOf(i)
		if err != nil || m.Free <= 0 || m.Free > m.Total {
			t.Errorf("memory of device %d is %+v, %v", i, m, err)
		}
	}
	if len(devices) > 0 && Driver() == "" {
		t.Error("devices without a driver")
	}
	if m, err := MemoryOf(len(devices)); err == nil {
		t.Errorf("device %d, which is not there, has memory %+v", len(devices), m)
	}
}

func TestTimer(t *testing.T) {
	devices, err := Devices()
	if err != nil {
		t.Fatal(err)
	}
	timer, err := NewTimer(0, nil)
	if len(devices) == 0 {
		if err == nil {
			t.Error("a timer without a GPU")
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := timer.Start(); err != nil {
		t.Fatal(err)
	}
	elapsed, err := timer.Stop()
	if err != nil || elapsed < 0 || elapsed > time.Minute {
		t.Errorf("an empty stretch took %v, %v", elapsed, err)
	}
	if err := timer.Close(); err != nil {
		t.Error(err)
	}
}

func TestDeviceString(t *testing.T) {
	d := Device{Index: 1, Name: "NVIDIA H200", Memory: 140 << 30, Major: 9}
	if got, want := d.String(), "cuda:1 NVIDIA H200, 140 GiB, sm_90"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
