package tokenizer

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/mgrpo/mgrpo/trainer/golden"
)

// benchText returns about a megabyte of text and code: this package's own source and the goldens' licence.
func benchText(b *testing.B) string {
	b.Helper()
	var text strings.Builder
	sources, err := filepath.Glob("*.go")
	if err != nil {
		b.Fatal(err)
	}
	for text.Len() < 1<<20 {
		for _, path := range append(sources, golden.File(b, "tokenizer", "LICENSE-Apache-2.0.txt")) {
			data, err := os.ReadFile(path)
			if err != nil {
				b.Fatal(err)
			}
			text.Write(data)
		}
	}
	return text.String()
}

// cpuTime returns the time that the process has used on all cores. It does not depend on the machine's other load.
func cpuTime(b *testing.B) time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		b.Fatal(err)
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}

func BenchmarkEncode(b *testing.B) {
	text := benchText(b)
	for _, name := range []string{"smollm2", "qwen3"} {
		b.Run(name, func(b *testing.B) {
			tok := goldenTokenizer(b, name)
			b.SetBytes(int64(len(text)))
			b.ResetTimer()
			start := cpuTime(b)
			for b.Loop() {
				tok.Encode(text)
			}
			b.ReportMetric(float64(len(text))*float64(b.N)/1e6/(cpuTime(b)-start).Seconds(), "MB/cpu-s")
		})
	}
}

// BenchmarkEncodeCold encodes without remembered pieces, so every merge is made.
func BenchmarkEncodeCold(b *testing.B) {
	text := benchText(b)
	tok := goldenTokenizer(b, "qwen3")
	s, err := readSpec(tok.Files()[fileTokenizer])
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		b.StopTimer()
		if tok.encoder.model, err = newBPE(s, true); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		tok.Encode(text)
	}
}

// BenchmarkEncodeLongPiece encodes one piece of 100,000 bytes. If merges took quadratic time, this would be slow.
func BenchmarkEncodeLongPiece(b *testing.B) {
	tok := goldenTokenizer(b, "qwen3")
	text := strings.Repeat("abcdefghij", 10_000)
	b.SetBytes(int64(len(text)))
	b.ResetTimer()
	for b.Loop() {
		tok.Encode(text)
	}
}

func BenchmarkDecode(b *testing.B) {
	tok := goldenTokenizer(b, "qwen3")
	ids := tok.Encode(benchText(b))
	b.SetBytes(int64(len(tok.Bytes(ids))))
	b.ResetTimer()
	for b.Loop() {
		tok.Decode(ids, true)
	}
}

func BenchmarkParse(b *testing.B) {
	files := goldenFiles(b, golden.File(b, "tokenizer", "qwen3"))
	b.ResetTimer()
	for b.Loop() {
		if _, err := Parse(files); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkRender(b *testing.B) {
	tok := goldenTokenizer(b, "qwen3")
	chat := Chat{Messages: Messages(Message{Role: "user", Content: "x"}, Message{Role: "assistant", Content: "y"},
		Message{Role: "user", Content: "z"}), AddGenerationPrompt: true}
	b.ResetTimer()
	for b.Loop() {
		if _, err := tok.Render(chat); err != nil {
			b.Fatal(err)
		}
	}
}
