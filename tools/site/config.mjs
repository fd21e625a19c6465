// The site of docs/. tools/site/build.sh copies the pages and this file to where VitePress finds both.
import fs from 'node:fs'
import path from 'node:path'
import { defineConfig } from 'vitepress'

const repository = 'https://github.com/switchyard-net/switchyard/blob/main/'
const pages = process.env.SITE_PAGES // the directory that the pages were copied to
const origin = process.env.SITE_ORIGIN // the repository's root

// elsewhere turns a link out of docs/ into one to the repository. One to nothing is an error, as one between pages is.
function elsewhere(href, page) {
  const [target, anchor] = href.split('#')
  if (!target || /^[a-z]+:/.test(target)) return href
  const file = path.resolve(origin, 'docs', path.dirname(page), target)
  if (!fs.existsSync(file)) throw new Error(`docs/${page}: there is no ${path.relative(origin, file)}`)
  const inDocs = path.relative(path.join(origin, 'docs'), file)
  if (!inDocs.startsWith('..') && (target.endsWith('.md') || /\.(svg|png)$/.test(target))) return href.replace('README.md', 'index.md')
  return repository + path.relative(origin, file) + (anchor ? '#' + anchor : '')
}

const anchors = new Map() // of each page
const wanted = [] // links to anchors

function links(md) {
  md.core.ruler.push('elsewhere', (state) => {
    const page = state.env.relativePath
    if (!page) return
    for (const block of state.tokens) {
      for (const t of block.children ?? []) {
        if (t.type !== 'link_open') continue
        const href = elsewhere(t.attrGet('href'), page)
        t.attrSet('href', href)
        const [target, anchor] = href.split('#')
        if (anchor && !/^[a-z]+:/.test(target)) wanted.push([page, target ? path.join(path.dirname(page), target) : page, decodeURIComponent(anchor)])
      }
    }
  })
}

// GitHub's names of headings, as the links in docs/ use them.
const slug = (text) => text.trim().toLowerCase().replace(/[^\p{L}\p{N}\s_-]/gu, '').replace(/\s/g, '-')

const item = (text, link) => ({ text, link })

// itemsOf lists the pages of a directory by their titles.
function itemsOf(dir) {
  return fs.readdirSync(path.join(pages, dir)).filter((name) => name.endsWith('.md') && name !== 'index.md').sort().map((name) => {
    const title = fs.readFileSync(path.join(pages, dir, name), 'utf8').match(/^# (.*)$/m)[1]
    return item(title.replace(/`/g, ''), `/${dir}/${name.slice(0, -3)}`)
  })
}

const sidebar = [
  { text: 'Begin', items: [item('Quick start', '/quick-start'), item('Concepts', '/concepts'), item('Glossary', '/glossary')] },
  { text: 'Tutorials', items: [item('Manifests in the lab', '/tutorials/lab'), item('From kube-proxy to Switchyard', '/tutorials/migrate'), item('A node in two processes', '/tutorials/split'),
    item('Relays', '/tutorials/relay'), item('A dataplane of your own', '/tutorials/dataplane'), item('Troubleshoot by explain', '/tutorials/explain')] },
  { text: 'Guides', items: [item('The lab', '/lab'), item('Migrate from kube-proxy', '/migrate-from-kube-proxy'), item('The API and relays', '/relay'), item('Write a dataplane', '/write-a-dataplane')] },
  { text: 'Recipes', items: itemsOf('recipes') },
  { text: 'Dataplanes', items: [item('Choose one', '/choose-a-dataplane'), item('nftables', '/nftables'), item('ebpf', '/ebpf'), item('iptables', '/iptables'),
    item('ipvs', '/ipvs'), item('userspace', '/userspace'), item('Windows', '/windows')] },
  { text: 'Troubleshoot', items: [item('Why: explain', '/explain'), item('A process: get and top', '/admin'), item('A node: doctor', '/doctor'), item('In a browser', '/ui'), item('Runbooks', '/runbooks/')] },
  { text: 'Operate', items: [item('Operate', '/operate'), item('Differences from kube-proxy', '/differences'), item('Stability', '/stability')] },
  { text: 'Reference', items: [item('Configuration', '/config-reference'), item('Commands', '/commands')] },
  { text: 'Evidence', items: [item('Proof', '/proof'), ...itemsOf('benchmarks')] },
  { text: 'Runbooks', collapsed: true, items: itemsOf('runbooks') },
  { text: 'Decisions', collapsed: true, items: itemsOf('adr') },
]

export default defineConfig({
  title: 'Switchyard',
  description: 'A node-local service proxy for Kubernetes',
  srcDir: pages,
  outDir: process.env.SITE_OUT,
  cleanUrls: false,
  lastUpdated: false,
  ignoreDeadLinks: false,
  markdown: {
    html: false, // <name> in a sentence is text
    anchor: { slugify: slug },
    config: links,
  },
  // {{ }} in a page is text, too.
  vue: { template: { compilerOptions: { delimiters: ['[[[', ']]]'] } } },
  transformPageData(data) {
    const text = fs.readFileSync(path.join(pages, data.relativePath), 'utf8').replace(/^```[\s\S]*?^```/gm, '')
    const seen = new Map()
    anchors.set(data.relativePath, new Set([...text.matchAll(/^#{1,6} (.*)$/gm)].map(([, title]) => {
      const name = slug(title.replace(/\[([^\]]*)\]\([^)]*\)/g, '$1').replace(/`/g, ''))
      const n = seen.get(name) ?? 0
      seen.set(name, n + 1)
      return n ? `${name}-${n}` : name
    })))
  },
  buildEnd() {
    const broken = wanted.filter(([, to, anchor]) => to.endsWith('.md') && !anchors.get(to)?.has(anchor))
    if (broken.length) throw new Error(broken.map(([page, to, anchor]) => `docs/${page}: ${to} has no heading #${anchor}`).join('\n'))
    const listed = new Set(['/index', ...sidebar.flatMap((group) => group.items.map((i) => i.link.replace(/\/$/, '/index')))])
    const lost = [...anchors.keys()].filter((page) => !listed.has('/' + page.slice(0, -3)))
    if (lost.length) throw new Error(`not in the sidebar of tools/site/config.mjs: ${lost.join(', ')}`)
  },
  themeConfig: {
    search: { provider: 'local' },
    outline: [2, 3],
    nav: [item('Quick start', '/quick-start'), item('Concepts', '/concepts'), item('Tutorials', '/tutorials/lab'), item('Troubleshoot', '/explain'), item('Reference', '/config-reference')],
    sidebar,
  },
})
