package weights

import (
	"archive/zip"
	"bytes"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/mgrpo/mgrpo/trainer/golden"
	"github.com/mgrpo/mgrpo/trainer/model/arch"
)

var binGolden = filepath.Join("..", "..", "..", "testdata", "models", "qwen2-tiny-bin")

// unzip returns the entries of an archive in order.
func unzip(t testing.TB, file []byte) (names []string, contents map[string][]byte) {
	t.Helper()
	r, err := zip.NewReader(bytes.NewReader(file), int64(len(file)))
	if err != nil {
		t.Fatal(err)
	}
	contents = map[string][]byte{}
	for _, f := range r.File {
		in, err := f.Open()
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		names, contents[f.Name] = append(names, f.Name), data
	}
	return names, contents
}

func rezip(t testing.TB, names []string, contents map[string][]byte, method uint16) []byte {
	t.Helper()
	var out bytes.Buffer
	w := zip.NewWriter(&out)
	for _, name := range names {
		f, err := w.CreateHeader(&zip.FileHeader{Name: name, Method: method})
		if err == nil {
			_, err = f.Write(contents[name])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestBinRefused(t *testing.T) {
	original, err := os.ReadFile(filepath.Join(binGolden, binFile))
	if err != nil {
		t.Fatal(err)
	}
	names, contents := unzip(t, original)
	with := func(name string, data []byte) map[string][]byte {
		changed := map[string][]byte{}
		for n, d := range contents {
			changed[n] = d
		}
		changed[name] = data
		return changed
	}
	pickle := contents["pytorch_model/data.pkl"]
	swap := func(old, new string) map[string][]byte {
		if !bytes.Contains(pickle, []byte(old)) {
			t.Fatalf("%q does not occur", old)
		}
		return with("pytorch_model/data.pkl", bytes.Replace(pickle, []byte(old), []byte(new), 1))
	}
	for _, c := range []struct {
		file []byte
		want []string
	}{
		{nil, []string{"pytorch_model.bin is empty"}},
		{[]byte("\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19."), []string{"not a zip", "torch.save"}},
		{original[:len(original)-1], []string{"zip"}},
		{rezip(t, names, contents, zip.Deflate), []string{"compressed"}},
		{rezip(t, slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == "pytorch_model/data.pkl" }), contents, zip.Store), []string{"data.pkl"}},
		{rezip(t, slices.DeleteFunc(slices.Clone(names), func(n string) bool { return n == "pytorch_model/data/3" }), contents, zip.Store), []string{"k_proj.weight", `"3"`, "not in the archive"}},
		{rezip(t, append(slices.Clone(names), "other/data.pkl"), with("other/data.pkl", pickle), zip.Store), []string{"other/data.pkl"}},
		{rezip(t, append(slices.Clone(names), "pytorch_model/data/3"), contents, zip.Store), []string{"pytorch_model/data/3", "twice"}},
		{rezip(t, names, with("pytorch_model/byteorder", []byte("big")), zip.Store), []string{"byte order", "big"}},
		{rezip(t, names, with("pytorch_model/data/3", make([]byte, 8188)), zip.Store), []string{"k_proj.weight", "8188"}},
		{rezip(t, names, swap("ctorch._utils\n_rebuild_tensor_v2\n", "cposix\nsystem\n"), zip.Store), []string{"posix.system"}},
		{rezip(t, names, swap("ctorch\nFloatStorage\n", "ctorch\nQInt8Storage\n"), zip.Store), []string{"torch.QInt8Storage"}},
		{rezip(t, names, swap("ctorch\nFloatStorage\n", "ctorch\nHalfStorage\n"), zip.Store), []string{"embed_tokens", "F16"}},
		{rezip(t, names, swap("\x80\x02", "\x80\x04"), zip.Store), []string{"protocol 4"}},
		{rezip(t, names, swap("M\x60\x01K\x40\x86", "M\x61\x01K\x40\x86"), zip.Store), []string{"past the end"}},
		{rezip(t, names, swap("M\x60\x01K\x40\x86", "M\x60\x01K\xff\x86"), zip.Store), []string{"past the end"}},
	} {
		dir := t.TempDir()
		if err := os.CopyFS(dir, os.DirFS(binGolden)); err != nil {
			t.Fatal(err)
		}
		if err := os.Remove(filepath.Join(dir, binFile)); err != nil {
			t.Fatal(err)
		}
		writeFile(t, filepath.Join(dir, binFile), c.file)
		_, err := Open(dir)
		golden.WantError(t, err, append(c.want, dir, binFile)...)
	}
}

// TestPickleOpcodes tries every opcode alone and on top of a valid state dict.
func TestPickleOpcodes(t *testing.T) {
	const valid = "\x80\x02}q\x00."
	if tensors, err := scanPickle([]byte(valid)); err != nil || len(tensors) != 0 {
		t.Fatal(tensors, err)
	}
	admitted := "(})XKMJcqrhjtQRsub.NG]ae\x81\x80\x88\x89\x8a\x85\x86\x87"
	for op := range 256 {
		_, err := scanPickle([]byte{0x80, 2, byte(op), '.'})
		if err == nil && op != '}' {
			t.Errorf("opcode %#x alone is accepted", op)
		}
		if strings.IndexByte(admitted, byte(op)) < 0 && (err == nil || !strings.Contains(err.Error(), "opcode")) {
			t.Errorf("opcode %#x: %v", op, err)
		}
	}
	for _, bad := range []string{"", "hello, this is no pickle", "\x80", "}", "\x80\x02K\x01.", "\x80\x02K\x01Q.", "\x80\x02(X\x07\x00\x00\x00storageK\x01K\x01K\x01K\x01tQ.",
		"]a.", "}]}K\x01a.", "}X\x01\x00\x00\x00a]K\x01as.", "cposix\nsystem\n)\x81.", "}}.", "}.x", "(.", "t.", "X\xff\xff\xff\xffa.", "h\x05.", "}K\x01K\x02s.", "}X\x01\x00\x00\x00aK\x01s.",
		"cos\nsystem\nX\x02\x00\x00\x00ls\x85R.", "c__builtin__\neval\n.", "ccollections\nOrderedDict\nK\x01\x85R.", "\x8a\xff.", strings.Repeat("(", maxPickleDepth+1)} {
		if _, err := scanPickle([]byte(bad)); err == nil {
			t.Errorf("%.40q is accepted", bad)
		}
	}
	// A module's state_dict: an OrderedDict with the attribute _metadata.
	if _, err := scanPickle([]byte("\x80\x02ccollections\nOrderedDict\n)R}X\x09\x00\x00\x00_metadata}sb.")); err != nil {
		t.Error(err)
	}
	if _, err := scanPickle([]byte("\x80\x02ccollections\nOrderedDict\n)R}X\x05\x00\x00\x00other}sb.")); err == nil {
		t.Error("attribute accepted")
	}
}

func TestPickleLong(t *testing.T) {
	for raw, want := range map[string]int64{"\x00": 0, "\x01\x05": 5, "\x01\xff": -1, "\x02\x00\x80": -32768, "\x05\x00\x00\x00\x00\x01": 1 << 32, "\x08\xff\xff\xff\xff\xff\xff\xff\x7f": 1<<63 - 1} {
		p := &pickleScanner{byteReader: byteReader{data: []byte(raw)}}
		if p.step(0x8a); p.err != nil || p.stack[0] != want {
			t.Errorf("%q: %v %v", raw, p.stack, p.err)
		}
	}
}

func FuzzPickle(f *testing.F) {
	if file, err := os.ReadFile(filepath.Join(binGolden, binFile)); err == nil {
		_, contents := unzip(f, file)
		f.Add(contents["pytorch_model/data.pkl"])
	}
	f.Add([]byte("\x80\x02}q\x00."))
	f.Add([]byte(otherValues))
	f.Fuzz(func(t *testing.T, data []byte) {
		tensors, err := scanPickle(data)
		if err != nil {
			return
		}
		for _, v := range tensors {
			n, ok := numel(v.shape)
			if isExtraState(v.name) {
				n = 0
			}
			if !ok || v.offset < 0 || v.offset+n > v.storage.size {
				t.Fatalf("%+v", v)
			}
		}
	})
}

// otherValues is a pickle in protocol 2 of Python's {"_extra_state": io.BytesIO(b"abc"), "a._extra_state": None,
// "b._extra_state": {"x": [1.5, 2**70, (1, [2])], "y": {3}, "z": collections.defaultdict(list, {1: [2]})},
// "c._extra_state": datetime.timedelta(1)}.
const otherValues = "\x80\x02}q\x00(X\x0c\x00\x00\x00_extra_stateq\x01c_io\nBytesIO\nq\x02)\x81q\x03c_codecs\nencode\nq\x04X\x03\x00\x00\x00abcq\x05X" +
	"\x06\x00\x00\x00latin1q\x06\x86q\x07Rq\x08K\x00N\x87q\x09bX\x0e\x00\x00\x00a._extra_stateq\nNX\x0e\x00\x00\x00b._extra_stateq\x0b}" +
	"q\x0c(X\x01\x00\x00\x00xq\x0d]q\x0e(G?\xf8\x00\x00\x00\x00\x00\x00\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x00@K\x01]q\x0fK\x02a\x86q" +
	"\x10eX\x01\x00\x00\x00yq\x11c__builtin__\nset\nq\x12]q\x13K\x03a\x85q\x14Rq\x15X\x01\x00\x00\x00zq\x16ccollections\ndefaultdict" +
	"\nq\x17c__builtin__\nlist\nq\x18\x85q\x19Rq\x1aK\x01]q\x1bK\x02asuX\x0e\x00\x00\x00c._extra_stateq\x1ccdatetime\ntimedelta\nq\x1dK" +
	"\x01K\x00K\x00\x87q\x1eRq\x1fu."

// TestPickleExtraState: extra state may have any value, which is not read. Other entries must be tensors.
func TestPickleExtraState(t *testing.T) {
	tensors, err := scanPickle([]byte(otherValues))
	if err != nil || len(tensors) != 4 || tensors[0].name != "_extra_state" {
		t.Errorf("%+v, %v", tensors, err)
	}
	for name, kind := range map[string]string{"a": "None", "b": "is not a tensor", "c": `a result of "datetime.timedelta"`} {
		_, err := scanPickle([]byte(strings.Replace(otherValues, name+"._extra_state", name+"._extra_stat_", 1)))
		golden.WantError(t, err, name+"._extra_stat_", kind, "state_dict()")
	}
}

// TestBinTypes: storages of any type may belong to parts that are not trained. In the language model they are refused by name.
func TestBinTypes(t *testing.T) {
	dir, cfg := t.TempDir(), tinyConfig(arch.Llama)
	o := newOpener(dir)
	o.config = cfg
	for _, c := range []struct{ class, name, want string }{
		{"LongStorage", "visual.w", ""}, {"BoolStorage", "mtp.w", ""}, {"LongStorage", "model.w", "type I64"}, {"QInt8Storage", "visual.q", "torch.QInt8Storage"},
		{"QInt8Storage", "q._extra_state", ""},
	} {
		writeFile(t, filepath.Join(dir, binFile), binArchive(t, c.name, c.class))
		if err := o.addBin(binFile); c.want != "" {
			golden.WantError(t, err, c.name, c.want)
		} else if err != nil {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if len(o.tensors) != 0 || len(o.others) != 2 || o.others["visual.w"].dtype != "I64" || len(o.others["mtp.w"].data) != 2 || len(o.notes) != 1 {
		t.Errorf("%+v, notes %q", o.others, o.notes)
	}
}

// binArchive returns an archive with a parameter of two values, which are 0.
func binArchive(t testing.TB, name, class string) []byte {
	pickle := "\x80\x02}X" + string(rune(len(name))) + "\x00\x00\x00" + name + "ctorch._utils\n_rebuild_parameter\n(ctorch._utils\n_rebuild_tensor_v2\n" +
		"((X\x07\x00\x00\x00storagectorch\n" + class + "\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQ" +
		"K\x00K\x02\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtR\x88ccollections\nOrderedDict\n)RtRs."
	size := map[string]int{"LongStorage": 16, "FloatStorage": 8}[class]
	contents := map[string][]byte{"a/data.pkl": []byte(pickle), "a/data/0": make([]byte, max(size, 2))}
	return rezip(t, []string{"a/data.pkl", "a/data/0"}, contents, zip.Store)
}

// smallArchive returns an archive with the tensor w, which has the values 0 and 0.
func smallArchive(t testing.TB) []byte {
	pickle := "\x80\x02}X\x01\x00\x00\x00wctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x02tQ" +
		"K\x00K\x02\x85K\x01\x85\x89ccollections\nOrderedDict\n)RtRs."
	contents := map[string][]byte{"a/data.pkl": []byte(pickle), "a/data/0": make([]byte, 8)}
	return rezip(t, []string{"a/data.pkl", "a/data/0"}, contents, zip.Store)
}

func FuzzBin(f *testing.F) {
	f.Add(smallArchive(f))
	f.Add(binArchive(f, "w", "LongStorage"))
	f.Fuzz(func(t *testing.T, file []byte) {
		found := map[string]tensor{}
		if scanBin(file, found) != nil {
			return
		}
		for name, v := range found {
			n, _ := numel(v.shape)
			count, _ := rows(v.shape)
			v, err := newTensor(v.shape, v.dtype, v.data)
			if err != nil {
				continue
			}
			if err := v.read(0, count, make([]float32, n)); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
	})
}

func TestSmallArchive(t *testing.T) {
	found := map[string]tensor{}
	if err := scanBin(smallArchive(t), found); err != nil || len(found) != 1 || found["w"].shape[0] != 2 {
		t.Error(found, err)
	}
}
