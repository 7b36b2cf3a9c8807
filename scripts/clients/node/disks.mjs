// npm's xen-api: fills a disk with putResource and reads it with getResource.

import { Readable } from 'node:stream'
import { createClient } from 'xen-api'

const NAME = 'client-node disk'
const SIZE = 4096

const xapi = createClient({
  url: process.env.RINGWAY_URL,
  auth: { user: 'root', password: process.env.RINGWAY_PASSWORD },
})
await xapi.connect()
await xapi.objectsFetched
const all = Object.values(xapi.objects.all)
const { $ref: SR } = all.find(one => one.$type === 'SR' && one.type === 'dir')
const vdi = await xapi.call('VDI.create', {
  name_label: NAME,
  name_description: '',
  SR,
  virtual_size: SIZE,
  type: 'user',
  sharable: false,
  read_only: false,
  other_config: {},
})
const same = async content => {
  const response = await xapi.getResource('/export_raw_vdi/', { query: { vdi, format: 'raw' } })
  const text = await response.body.text()
  await response.task
  if (text !== content) {
    throw new Error(`the disk has ${text.slice(0, 40)}, not ${content.slice(0, 40)}`)
  }
}
const put = async (content, body) => {
  const query = { vdi, format: 'raw' }
  await xapi.putResource(body, '/import_raw_vdi/', { query, task: xapi.createTask('import') })
  await same(content)
}
const first = 'first '.repeat(SIZE).slice(0, SIZE)
await put(first, Buffer.from(first))
// A stream is announced by a request with nothing.
const second = 'second '.repeat(SIZE).slice(0, SIZE)
const stream = Readable.from([Buffer.from(second)])
stream.length = SIZE
await put(second, stream)
await xapi.call('VDI.destroy', vdi)
await xapi.disconnect()
process.exit(0)
