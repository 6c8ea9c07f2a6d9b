"""Writes types.parquet, int96.parquet, empty-groups.parquet and refused-*.parquet: `pip install pyarrow && python write_types.py` from the
root.

TestParquetTypes checks the values.
"""
import pyarrow as pa, pyarrow.parquet as pq, decimal, datetime as dt, uuid
D=decimal.Decimal
cols={
 'int8':pa.array([-8],pa.int8()),'uint8':pa.array([200],pa.uint8()),'int64':pa.array([-2**63],pa.int64()),'uint32':pa.array([2**32-1],pa.uint32()),'uint64':pa.array([2**64-1],pa.uint64()),
 'float32':pa.array([0.1],pa.float32()),'float64':pa.array([0.1],pa.float64()),
 'bool':pa.array([True]),'null':pa.array([None],pa.null()),
 'string':pa.array(['é']),'large_string':pa.array(['x'],pa.large_string()),'dictionary':pa.array(['x']).dictionary_encode(),
 'utf8_binary':pa.array([b'text'],pa.binary()),
 'dec9':pa.array([D('12.34')],pa.decimal128(9,2)),'dec18':pa.array([D('-1234567890.12')],pa.decimal128(18,2)),'dec38':pa.array([D('-12345678901234567890.1234')],pa.decimal128(38,4)),
 'date32':pa.array([dt.date(2024,2,29)],pa.date32()),'date64':pa.array([dt.date(1969,12,31)],pa.date64()),
 'ts_ms':pa.array([dt.datetime(2024,2,29,12,30,15,123000)],pa.timestamp('ms')),'ts_us':pa.array([dt.datetime(2024,2,29,12,30,15,123456)],pa.timestamp('us')),'ts_ns':pa.array([1709209815123456789],pa.timestamp('ns')),
 'ts_utc':pa.array([dt.datetime(2024,2,29,12,30,15)],pa.timestamp('us',tz='UTC')),'ts_paris':pa.array([1709209815123456],pa.timestamp('us',tz='Europe/Paris')),
 'time_ms':pa.array([dt.time(12,30,15,123000)],pa.time32('ms')),'time_us':pa.array([dt.time(12,30,15,123456)],pa.time64('us')),
 'duration':pa.array([dt.timedelta(seconds=1.5)],pa.duration('us')),
 'list':pa.array([[1,2]],pa.list_(pa.int32())),'list_null':pa.array([[1,None]],pa.list_(pa.int32())),'list_empty':pa.array([[]],pa.list_(pa.int32())),'fsl':pa.array([[1,2]],pa.list_(pa.int32(),2)),'list_list':pa.array([[[1],[]]],pa.list_(pa.list_(pa.int32()))),
 'list_dec':pa.array([[D('1.50')]],pa.list_(pa.decimal128(9,2))),'list_ts':pa.array([[dt.datetime(2024,2,29)]],pa.list_(pa.timestamp('us'))),
 'map':pa.array([[('b',1),('a',2)]],pa.map_(pa.string(),pa.int32())),'map_int':pa.array([[(7,'x')]],pa.map_(pa.int32(),pa.string())),
 'struct':pa.array([{'x':1,'d':D('2.50'),'t':dt.date(2024,1,1)}],pa.struct([('x',pa.int32()),('d',pa.decimal128(9,2)),('t',pa.date32())])),
 'list_struct':pa.array([[{'role':'user','content':'q'}]],pa.list_(pa.struct([('role',pa.string()),('content',pa.string())]))),
 'nan':pa.array([float('nan')]),'big':pa.array([1e300]),'f32big':pa.array([16777217.0],pa.float32()),
}
t=pa.table({**{'question':pa.array(['q']),'answer':pa.array(['a'])},**cols})
pq.write_table(t,'trainer/task/jsonl/testdata/types.parquet',store_schema=False)

pq.write_table(pa.table({'int96':pa.array([dt.datetime(2024,2,29,12,30,15,123456)],pa.timestamp('ns')),'question':pa.array(['q']),'answer':pa.array(['a'])}),'trainer/task/jsonl/testdata/int96.parquet',use_deprecated_int96_timestamps=True)
for name, column in {'infinite': pa.array([float('inf')]), 'bytes': pa.array([b'\xff\x00'], pa.binary()), 'fixed': pa.array([b'ab'], pa.binary(2)), 'half': pa.array([1.5], pa.float16())}.items():
    pq.write_table(pa.table({'question': pa.array(['q']), 'answer': pa.array(['a']), name: column}), f'trainer/task/jsonl/testdata/refused-{name}.parquet')

pq.write_table(pa.table([pa.array(['Q']), pa.array(['A']), pa.array(['B'])], names=['question', 'answer', 'answer']), 'trainer/task/jsonl/testdata/refused-twice.parquet')
some = pa.table({'question': ['Q', 'Q2'], 'answer': ['A', 'A2']})
with pq.ParquetWriter('trainer/task/jsonl/testdata/empty-groups.parquet', some.schema) as groups:
    for part in some[:0], some[:1], some[:0], some[1:]:
        groups.write_table(part)
