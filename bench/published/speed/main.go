// Command speed prints the speed of a folder's tokenizer on one thread, in megabytes of encoded text a second.
//
//	go run ./bench/published/speed FOLDER TEXTS.jsonl
//
// TEXTS.jsonl has one JSON string a line. The time includes only the encoding.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"log"
	"os"
	"runtime"
	"time"

	"github.com/mgrpo/mgrpo/trainer/model/tokenizer"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: speed FOLDER TEXTS.jsonl")
	}
	tok, err := tokenizer.Load(os.Args[1])
	if err != nil {
		log.Fatal(err)
	}
	texts, size, err := read(os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	runtime.GOMAXPROCS(1)
	start := time.Now()
	tokens := 0
	for _, text := range texts {
		tokens += len(tok.Encode(text))
	}
	fmt.Printf("{\"mb_per_s\": %.3f, \"tokens\": %d}\n", float64(size)/1e6/time.Since(start).Seconds(), tokens)
}

// read returns the texts of a file and their total size in bytes.
func read(path string) (texts []string, size int, err error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, 0, err
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 64<<20)
	for lines.Scan() {
		var text string
		if err := json.Unmarshal(lines.Bytes(), &text); err != nil {
			return nil, 0, err
		}
		texts, size = append(texts, text), size+len(text)
	}
	return texts, size, lines.Err()
}
