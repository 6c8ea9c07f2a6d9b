package search

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/blevesearch/bleve/v2/registry"

	"github.com/mgrpo/mgrpo/trainer/agent/tool/tooltest"
)

// languages lists texts with queries that find them.
var languages = []struct {
	title, text string
	queries     []string
}{
	{"The Who", "The Who are an English rock band formed in London.", []string{"The Who", "who", "THE WHO?", "ｔｈｅ ｗｈｏ"}},
	{"Conan", "Conan O'Brien is a host.", []string{"O’Brien", "O'Brien", "O‘Brien", "OʼBrien", "OBrien", "Conan’s", "Brien", "hosts"}},
	{"François", "D’Artagnan aime le thé à l’hôtel.", []string{"Francois", "FRANÇOIS", "Franc\u0327ois", "d'artagnan", "the\u0301", "thé", "hotel", "hôtels", "L'Hôtel"}},
	{"Straße", "Häuser von Müller mit Äpfeln und Öl.", []string{"Strasse", "STRASSE", "STRAẞE", "strassen", "Haus", "Muller", "Mueller", "Müllers", "Aepfel"}},
	{"İstanbul", "Iğdır'da kışın kar yağar; Diyarbakır'dan geldi.", []string{"istanbul", "Istanbul", "ISTANBUL", "Igdir", "Iğdır", "diyarbakir", "Diyarbakır’a", "kis"}},
	{"Łódź", "Ångström in Århus, Tromsø and Þingvellir.", []string{"Lodz", "łódź", "Angstrom", "Aarhus", "Tromso", "Thingvellir"}},
	{"Москва", "В Москве ещё живёт кот; книги Алексея.", []string{"москва", "МОСКВА", "Москвой", "живет", "еще", "книга", "книгами", "Алексей"}},
	{"Αθήνα", "Ο Οδυσσέας γύρισε στην Ιθάκη.", []string{"Αθηνα", "ΑΘΗΝΑ", "οδυσσεας", "ΟΔΥΣΣΈΑΣ", "Ιθάκης"}},
	{"القاهرة", "كَتَبَ أحمد إلى المكتبة في مصـــر سنة ١٩٨٤", []string{"القاهره", "قاهرة", "كتب", "احمد", "مكتبة", "مصر", "1984", "ﻣﺼﺮ"}},
	{"שלום", "בְּרֵאשִׁית", []string{"שלום", "בראשית"}},
	{"東京", "東京タワーは日本のﾗｼﾞｵ塔です。", []string{"東京", "京", "日本", "タワー", "ﾀﾜｰ", "ラジオ", "らじお"}},
	{"서울", "서울에서 집에서 한국어를 배웁니다.", []string{"서울", "집", "한국어", "한국어는"}},
	{"กรุงเทพ", "กรุงเทพเป็นเมืองหลวง", []string{"กรุงเทพ", "เมือง"}},
	{"हिन्दी", "भारत की भाषा", []string{"हिन्दी", "भारत"}},
	{"Office", "The ﬁrst eﬃcient soft\u00adware of Ｔｏｋｙｏ, x²", []string{"first", "efficient", "software", "TOKYO", "x2"}},
	{"Lengths", "The 5km run of the 1960s, read_file_lines and _getUserName_ in 第3回.", []string{"5 km", "5km", "read file lines", "file", "get user name", "getUserName", "username", "1960"}},
}

// TestSearchLanguages: each query of a text finds this text first.
func TestSearchLanguages(t *testing.T) {
	var corpus strings.Builder
	for _, l := range languages {
		line, err := json.Marshal(map[string]string{"title": l.title, "text": l.text})
		if err != nil {
			t.Fatal(err)
		}
		corpus.WriteString(string(line) + "\n")
	}
	path := writeCorpus(t, corpus.String())
	memory := newTestSearch(t, CorpusOptions{Corpus: path, Results: 3})
	disk := newTestSearch(t, CorpusOptions{Corpus: path, Results: 3, Index: t.TempDir()})
	for _, l := range languages {
		for _, query := range l.queries {
			got := tooltest.CallText(t, memory, "query", query)
			if !strings.HasPrefix(got, "[1] "+l.title+"\n") {
				t.Errorf("%q: got %q, want %q first", query, got, l.title)
			}
			if other := tooltest.CallText(t, disk, "query", query); other != got {
				t.Errorf("%q: the index on the disk gives %q, the index in memory %q", query, other, got)
			}
		}
	}
	for _, query := range []string{"whale", "цирк", "犬", "…", "'"} {
		if got := tooltest.CallText(t, memory, "query", query); got != "nothing found" {
			t.Errorf("%q: got %q", query, got)
		}
	}
}

// TestSearchExactFirst: a search finds the exact word before other forms of it.
func TestSearchExactFirst(t *testing.T) {
	s := newTestSearch(t, CorpusOptions{Corpus: writeCorpus(t, `{"text": "the engine"}`+"\n"+`{"text": "many engines"}`), Results: 3})
	for query, want := range map[string]string{"engine": "[1] \nthe engine", "the engines": "[1] \nmany engines"} {
		if got := tooltest.CallText(t, s, "query", query); got != want {
			t.Errorf("%q: got %q, want %q", query, got, want)
		}
	}
}

// TestIndexOfFormat: an index of an earlier format in the folder is left alone, and a new one is built.
func TestIndexOfFormat(t *testing.T) {
	const earlier = "a351902a759e78c0786bdcc7a2c71b47" // digest of testCorpus's index in format 1
	corpus, dir := writeCorpus(t, testCorpus), t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, earlier), 0o700); err != nil {
		t.Fatal(err)
	}
	checkTestSearch(t, newTestSearch(t, CorpusOptions{Corpus: corpus, Results: 3, Index: dir}))
	if _, err := os.Stat(filepath.Join(dir, earlier, indexManifest)); err == nil {
		t.Error("the folder of the earlier index was written to")
	}
}

// TestCompoundParts: the parts of words that are written as one. Marks belong to their letter.
func TestCompoundParts(t *testing.T) {
	for text, want := range map[string]string{
		"5km 10.5kg": "5 km 5 kg", "read_file_lines __init__ _": "read file lines init", "getUserName HTMLParser YouTube": "get User Name You Tube",
		"plain Words 1960 हिन्दी O'Brien ÉCOLE": "", "2020년 東京2020オリンピック": "2020 년",
	} {
		if got := strings.Join(compoundParts(text), " "); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func FuzzWords(f *testing.F) {
	for _, l := range languages {
		f.Add(l.text)
	}
	f.Add("\xff'\u0301ー" + strings.Repeat("ﷺ", 50))
	cache := registry.NewCache()
	f.Fuzz(func(t *testing.T, text string) {
		for _, name := range []string{wordsAnalyzer, looseAnalyzer} {
			analyzer, err := cache.AnalyzerNamed(name)
			if err != nil {
				t.Fatal(err)
			}
			for _, token := range analyzer.Analyze([]byte(text)) {
				if utf8.ValidString(text) && !utf8.Valid(token.Term) {
					t.Errorf("%s: got term %q of %q", name, token.Term, text)
				}
			}
		}
	})
}
